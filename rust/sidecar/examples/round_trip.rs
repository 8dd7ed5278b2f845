//! What a question to the sidecar costs beside a bare echo on a Unix socket: `make bench-sidecar`.
//!
//! Both are asked by one blocking client, in turns, and answered by a thread of another process: this one forks itself into
//! server and client by running its own file again.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use trunkline_core::{Millis, Router, RouterConfig, WorkerSpec};
use trunkline_sidecar::{Options, Sidecar, VERSION};

const ROUNDS: usize = 15;
const CALLS: usize = 2000;
const WORKERS: usize = 8;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, folder] = arguments.as_slice() {
        return serve(folder);
    }
    let folder = TempDir::new().expect("a temporary folder");
    let server = Server::start(&folder);
    println!(
        "| tokens | bare echo, us | peek, us | route + complete, us per call | peek / echo | route / echo |"
    );
    println!("| ---: | ---: | ---: | ---: | ---: | ---: |");
    for tokens in [64, 512, 4096] {
        measure(&folder, tokens);
    }
    drop(server);
}

fn measure(folder: &TempDir, tokens: u32) {
    let mut echo = connect(folder, "echo");
    let mut sidecar = connect(folder, "sidecar");
    let mut hello = b"\0TRKL".to_vec();
    hello.extend(VERSION.to_le_bytes());
    hello.extend(1u64.to_le_bytes());
    let answer = ask(&mut sidecar, &hello);
    let tag = answer[5..13].to_vec();
    let (peek, route) = (prompt(2, tokens), prompt(1, tokens));
    let mut times: [Vec<Duration>; 3] = Default::default();
    for _ in 0..ROUNDS {
        // The echo sends as much and gets as much back as a decision has.
        times[0].push(time(|| drop(ask(&mut echo, &peek))));
        times[1].push(time(|| drop(ask(&mut sidecar, &peek))));
        // Two questions: half of it is one.
        times[2].push(
            time(|| {
                let decision = ask(&mut sidecar, &route);
                assert_eq!(decision[0], 0, "it is routed");
                let done = [&[5][..], &tag, &decision[1..9], &[255; 12]].concat();
                assert_eq!(ask(&mut sidecar, &done), [0, 1, 0, 0, 0], "it is completed");
            }) / 2,
        );
    }
    let [echo, peek, route] = times.map(|mut rounds| {
        rounds.sort_unstable();
        rounds[ROUNDS / 2].as_secs_f64() * 1e6
    });
    println!("| {tokens} | {echo:.1} | {peek:.1} | {route:.1} | {:.2} | {:.2} |", peek / echo, route / echo);
}

/// Median of the calls of a round.
fn time(mut call: impl FnMut()) -> Duration {
    let mut times = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let start = Instant::now();
        call();
        times.push(start.elapsed());
    }
    times.sort_unstable();
    times[CALLS / 2]
}

fn prompt(asks: u8, tokens: u32) -> Vec<u8> {
    let mut body = vec![asks, 0, 0, 0, 0, 0, 0, 0];
    body.extend((0..tokens).flat_map(u32::to_le_bytes));
    body
}

fn ask(stream: &mut UnixStream, body: &[u8]) -> Vec<u8> {
    let frame = [&(body.len() as u32).to_le_bytes(), body].concat();
    stream.write_all(&frame).expect("it is taken");
    let mut answer = [0; 256];
    let count = stream.read(&mut answer).expect("an answer");
    assert_eq!(u32::from_le_bytes([answer[0], answer[1], answer[2], answer[3]]) as usize, count - 4);
    answer[4..count].to_vec()
}

fn connect(folder: &TempDir, name: &str) -> UnixStream {
    UnixStream::connect(folder.path().join(name)).expect("it listens")
}

/// The process that answers.
struct Server(Child);

impl Server {
    fn start(folder: &TempDir) -> Self {
        let program = std::env::current_exe().expect("this program has a file");
        let child = Command::new(program).arg(folder.path()).spawn().expect("it starts");
        let deadline = Instant::now() + Duration::from_secs(20);
        while !folder.path().join("sidecar").exists() {
            assert!(Instant::now() < deadline, "the server does not listen");
            std::thread::yield_now();
        }
        Self(child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(folder: &str) {
    let echo = UnixListener::bind(format!("{folder}/echo")).expect("it listens");
    let router = Arc::new(Router::new(RouterConfig::default()).expect("defaults are allowed"));
    for number in 0..WORKERS {
        router.add_worker(WorkerSpec::new(format!("w{number}"))).expect("new");
    }
    let start = Instant::now();
    let path = format!("{folder}/sidecar");
    let clock = move || Millis(start.elapsed().as_millis() as u64);
    let _sidecar = Sidecar::start(router, path.as_ref(), Options::default(), clock).expect("it starts");
    for stream in echo.incoming() {
        let mut stream = stream.expect("a connection");
        std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            let answer = [&41u32.to_le_bytes()[..], &[0; 41]].concat();
            let mut had = 0;
            // A frame may come in pieces, as it does to the sidecar.
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                had += count;
                if had >= 4 + u32::from_le_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]) as usize {
                    had = 0;
                    let _ = stream.write_all(&answer);
                }
            }
        });
    }
}
