//! The workers of `make bench-gateway`: `bench_worker PORT ...` serves all of them on one thread, as cheaply as it can.
//!
//! Answers a chat with a completion of some 500 bytes, or with 32 events 5 ms apart if the body asks for a stream; a GET
//! with what routers want to know of a model; and anything else with 404. What it says is the same for everybody, but
//! for its number, by which the load knows who answered.

use std::error::Error;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep_until};

const EVENTS: u32 = 32;
const EVENT_GAP: Duration = Duration::from_millis(5);
/// Answers every question about the model that a router has been seen to ask.
const ABOUT: &str = r#"{"object":"list","data":[{"id":"mock","object":"model","created":1,"owned_by":"vllm","max_model_len":131072}],"model_path":"mock","served_model_name":"mock","tokenizer_path":"mock","is_generation":true,"dp_size":1,"tp_size":1,"version":"0.11.0"}"#;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut listening = tokio::task::JoinSet::new();
    for (number, port) in std::env::args().skip(1).enumerate() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.parse()?)).await?;
        listening.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(converse(stream, number));
            }
        });
    }
    println!("ready");
    while listening.join_next().await.is_some() {}
    Ok(())
}

/// Answers one request after the other; an error is the peer's leave.
async fn converse(mut stream: TcpStream, number: usize) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let completion = completion(number);
    let mut read = Vec::with_capacity(128 << 10);
    loop {
        read.clear();
        let head = loop {
            if stream.read_buf(&mut read).await? == 0 {
                return Ok(());
            }
            if let Some(at) = find(&read, b"\r\n\r\n") {
                break at + 4;
            }
        };
        if !read.starts_with(b"POST") {
            stream.write_all(whole("200 OK", ABOUT).as_bytes()).await?;
            continue;
        }
        let length = content_length(&read[..head]);
        while read.len() < head + length {
            stream.read_buf(&mut read).await?;
        }
        if !read.starts_with(b"POST /v1/chat/completions HTTP") {
            stream.write_all(whole("404 Not Found", "{}").as_bytes()).await?;
        } else if find(&read[head..], b"\"stream\":true").is_some() {
            stream_events(&mut stream, number).await?;
        } else {
            stream.write_all(completion.as_bytes()).await?;
        }
    }
}

fn completion(number: usize) -> String {
    let content = "a word ".repeat(40);
    whole(
        "200 OK",
        &format!(
            r#"{{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"w{number}","choices":[{{"index":0,"message":{{"role":"assistant","content":"{content}"}},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":2000,"total_tokens":2032,"completion_tokens":32}}}}"#
        ),
    )
}

fn whole(status: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
}

async fn stream_events(stream: &mut TcpStream, number: usize) -> std::io::Result<()> {
    stream
        .write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        )
        .await?;
    let start = Instant::now();
    let mut chunk = String::new();
    for event in 0..=EVENTS {
        let data = if event == EVENTS {
            "data: [DONE]\n\n".to_owned()
        } else {
            format!(
                "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"w{number}\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" word{event}\"}},\"finish_reason\":null}}]}}\n\n"
            )
        };
        chunk.clear();
        write!(chunk, "{:x}\r\n{data}\r\n", data.len()).expect("writing to a String does not fail");
        if event == EVENTS {
            chunk += "0\r\n\r\n";
        }
        sleep_until(start + EVENT_GAP * event).await;
        stream.write_all(chunk.as_bytes()).await?;
    }
    Ok(())
}

fn content_length(head: &[u8]) -> usize {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let value = head.split_once("content-length:").and_then(|(_, rest)| rest.split("\r\n").next());
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, wanted)
}
