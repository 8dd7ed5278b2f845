//! The load of `make bench-gateway`: `bench_load --port P --connections N --body-bytes B --stream 0|1 --seconds S`.
//!
//! Closed loop: each connection sends its next request when the answer to the last one is complete. A body is one of 50
//! system prompts (70 % of it) and a tail that nobody else sends. Prints one JSON object: requests, failures, latencies
//! in microseconds, and how the 50 prompts were spread over the workers.

use std::cell::RefCell;
use std::collections::HashMap;
use std::error::Error;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PROMPTS: u64 = 50;
const SYSTEM_SHARE: f64 = 0.7;
/// Not measured: connections are made and caches filled.
const WARM_UP: Duration = Duration::from_millis(300);

#[derive(Debug, Clone, Copy)]
struct Plan {
    port: u16,
    connections: usize,
    body_bytes: usize,
    is_stream: bool,
    measure_from: Instant,
    until: Instant,
}

#[derive(Debug, Default)]
struct Seen {
    /// All that were sent, those of the warm-up included.
    sent: u64,
    failures: u64,
    /// Microseconds to the first byte of the body, and to the end.
    first_us: Vec<f64>,
    whole_us: Vec<f64>,
    /// Answers by prompt and worker.
    answers: HashMap<(u64, u8), u64>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let (mut port, mut connections, mut body_bytes, mut is_stream, mut seconds) = (0, 1, 8192, false, 1.0);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} wants a value"))?;
        match name.as_str() {
            "--port" => port = value.parse()?,
            "--connections" => connections = value.parse()?,
            "--body-bytes" => body_bytes = value.parse()?,
            "--stream" => is_stream = value == "1",
            "--seconds" => seconds = value.parse()?,
            _ => return Err(format!("{name}: no such argument").into()),
        }
    }
    let measure_from = Instant::now() + WARM_UP;
    let until = measure_from + Duration::from_secs_f64(seconds);
    let plan = Plan { port, connections, body_bytes, is_stream, measure_from, until };
    let seen = Rc::new(RefCell::new(Seen::default()));
    let lanes = tokio::task::LocalSet::new();
    for lane in 0..plan.connections {
        lanes.spawn_local(run(plan, lane as u64, Rc::clone(&seen)));
    }
    lanes.await;
    println!("{}", report(&mut seen.borrow_mut(), seconds));
    Ok(())
}

/// One connection, made anew after a failure.
async fn run(plan: Plan, lane: u64, seen: Rc<RefCell<Seen>>) {
    let mut random = lane.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut stream = None;
    let mut answer = Vec::with_capacity(64 << 10);
    while Instant::now() < plan.until {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let prompt = (random >> 33) % PROMPTS;
        let request = request(plan, prompt, random);
        let since = Instant::now();
        let outcome = exchange(&mut stream, plan, &request, &mut answer).await;
        let mut seen = seen.borrow_mut();
        seen.sent += 1;
        if since < plan.measure_from {
            continue;
        }
        match outcome {
            Ok(first) => {
                seen.first_us.push(first.duration_since(since).as_secs_f64() * 1e6);
                seen.whole_us.push(since.elapsed().as_secs_f64() * 1e6);
                let worker = memchr::memmem::find(&answer, b"\"model\":\"w").map_or(0, |at| answer[at + 10]);
                *seen.answers.entry((prompt, worker)).or_default() += 1;
            }
            Err(_) => {
                stream = None;
                seen.failures += 1;
            }
        }
    }
}

fn request(plan: Plan, prompt: u64, random: u64) -> Vec<u8> {
    let system_bytes = (plan.body_bytes as f64 * SYSTEM_SHARE) as usize;
    let system = text(format!("You are assistant {prompt:02}. "), system_bytes);
    let tail = text(format!("Question {random:016x}: "), plan.body_bytes.saturating_sub(system_bytes + 140));
    let end = if plan.is_stream { r#","stream":true}"# } else { "}" };
    let body = format!(
        r#"{{"model":"mock","messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"{tail}"}}],"max_tokens":32{end}"#
    );
    let length = body.len();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nauthorization: Bearer none\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// `start` and as many words as make about `bytes`: with line ends and quotes, escaped for JSON, as prompts have them.
fn text(start: String, bytes: usize) -> String {
    const WORDS: [&str; 8] = [
        "be kind, ",
        "be brief ",
        "and right.",
        "\\n\\n- ",
        "what is a ",
        "\\\"trunk line\\\" ",
        "for, ",
        "caf\u{e9} ",
    ];
    let mut text = start;
    for word in WORDS.iter().cycle() {
        if text.len() + word.len() > bytes {
            return text;
        }
        text += word;
    }
    text
}

/// Sends `request` and reads the whole `answer`; returns when its body began.
async fn exchange(
    kept: &mut Option<TcpStream>,
    plan: Plan,
    request: &[u8],
    answer: &mut Vec<u8>,
) -> Result<Instant, Box<dyn Error>> {
    let stream = match kept {
        Some(stream) => stream,
        None => {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, plan.port)).await?;
            stream.set_nodelay(true)?;
            kept.insert(stream)
        }
    };
    stream.write_all(request).await?;
    answer.clear();
    let (mut head, mut first) = (0, None);
    loop {
        if stream.read_buf(answer).await? == 0 {
            return Err("cut".into());
        }
        if head == 0 {
            let Some(at) = memchr::memmem::find(answer, b"\r\n\r\n") else { continue };
            head = at + 4;
            if !answer.starts_with(b"HTTP/1.1 200") {
                return Err("refused".into());
            }
        }
        if answer.len() > head {
            first.get_or_insert_with(Instant::now);
        }
        if is_whole(&answer[..head], &answer[head..]) {
            return Ok(first.unwrap_or_else(Instant::now));
        }
    }
}

fn is_whole(head: &[u8], body: &[u8]) -> bool {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    match head
        .split_once("content-length:")
        .and_then(|(_, rest)| rest.split("\r\n").next()?.trim().parse().ok())
    {
        Some(length) => body.len() >= length,
        None => body.ends_with(b"\r\n0\r\n\r\n"),
    }
}

fn report(seen: &mut Seen, seconds: f64) -> String {
    let (mut by_worker, mut by_prompt) = (HashMap::<u8, u64>::new(), HashMap::<u64, (u64, u64)>::new());
    for (&(prompt, worker), &count) in &seen.answers {
        *by_worker.entry(worker).or_default() += count;
        let (most, all) = by_prompt.entry(prompt).or_default();
        (*most, *all) = ((*most).max(count), *all + count);
    }
    let requests: u64 = by_worker.values().sum();
    let on_main: u64 = by_prompt.values().map(|(most, _)| most).sum();
    let busiest = by_worker.values().max().copied().unwrap_or(0);
    let quantiles = |times: &mut Vec<f64>| {
        times.sort_unstable_by(f64::total_cmp);
        [0.1, 0.5, 0.99]
            .map(|share| times.get((times.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN))
    };
    let ([p10, p50, p99], [first_p10, first_p50, _]) =
        (quantiles(&mut seen.whole_us), quantiles(&mut seen.first_us));
    serde_json::json!({
        "sent": seen.sent,
        "requests": requests,
        "failures": seen.failures,
        "per_second": requests as f64 / seconds,
        "p10_us": p10, "p50_us": p50, "p99_us": p99,
        "first_p10_us": first_p10, "first_p50_us": first_p50,
        "affinity": on_main as f64 / requests.max(1) as f64,
        "busiest_over_mean": busiest as f64 * by_worker.len() as f64 / requests.max(1) as f64,
    })
    .to_string()
}
