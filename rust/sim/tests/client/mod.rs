//! A plain HTTP/1.1 client on a blocking socket: what it sends and receives is exactly what it says.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Longest wait for a byte.
const PATIENCE: Duration = Duration::from_secs(10);

/// An answer whose body has not been read.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    reader: BufReader<TcpStream>,
}

/// Sends one request on a connection of its own and reads the head of the answer.
pub(crate) fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    content_type: Option<&str>,
    body: &[u8],
) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let content_type = content_type.map(|kind| format!("content-type: {kind}\r\n")).unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: worker\r\nconnection: close\r\n{content_type}content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut reader = BufReader::new(stream);
    let status = line(&mut reader).split(' ').nth(1).unwrap().parse().unwrap();
    let mut headers = Vec::new();
    loop {
        let header = line(&mut reader);
        let Some((name, value)) = header.split_once(": ") else {
            break;
        };
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    Answer { status, headers, reader }
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Answer {
    send(address, "GET", path, None, b"")
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Answer {
    send(address, "POST", path, Some("application/json"), body.to_string().as_bytes())
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// The next chunk of a chunked body; empty at its end.
    pub(crate) fn chunk(&mut self) -> Vec<u8> {
        let size = usize::from_str_radix(&line(&mut self.reader), 16).unwrap();
        let mut chunk = vec![0; size + 2];
        self.reader.read_exact(&mut chunk).unwrap();
        chunk.truncate(size);
        chunk
    }

    pub(crate) fn text(mut self) -> String {
        let mut body = Vec::new();
        if self.header("transfer-encoding") == Some("chunked") {
            loop {
                let chunk = self.chunk();
                if chunk.is_empty() {
                    break;
                }
                body.extend(chunk);
            }
        } else {
            self.reader.read_to_end(&mut body).unwrap();
        }
        String::from_utf8(body).unwrap()
    }

    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.text()).unwrap()
    }

    /// The data of every event of a stream.
    pub(crate) fn events(self) -> Vec<String> {
        let text = self.text();
        let events = text.strip_suffix("\n\n").unwrap().split("\n\n");
        events.map(|event| event.strip_prefix("data: ").unwrap().to_owned()).collect()
    }
}

fn line(reader: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}
