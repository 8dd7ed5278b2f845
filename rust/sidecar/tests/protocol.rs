//! The service as its clients see it, sane ones and others, byte by byte.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use trunkline_core::{Millis, Router, RouterConfig, WorkerSpec};
use trunkline_sidecar::{Error, Options, Sidecar, Status, VERSION};

const DEADLINE: Duration = Duration::from_secs(10);

struct Service {
    router: Arc<Router>,
    sidecar: Sidecar,
    _folder: TempDir,
}

fn start(options: Options) -> Service {
    let folder = TempDir::new().expect("a temporary folder");
    let config = RouterConfig { memory_budget: 4 << 20, ..RouterConfig::default() };
    let router = Arc::new(Router::new(config).expect("allowed"));
    for name in ["a", "b"] {
        router.add_worker(WorkerSpec::new(name)).expect("new");
    }
    let path = folder.path().join("socket");
    let sidecar = Sidecar::start(Arc::clone(&router), &path, options, || Millis(1)).expect("it starts");
    Service { router, sidecar, _folder: folder }
}

fn patient() -> Options {
    Options { frame_timeout: Duration::from_secs(60), grace: Duration::from_secs(60), ..Options::default() }
}

impl Service {
    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.sidecar.path()).expect("it listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a socket");
        stream
    }

    /// A connection of this client, after its hello.
    fn client(&self, number: u64) -> UnixStream {
        let mut stream = self.connect();
        let answer = ask(&mut stream, &hello(VERSION, number));
        assert_eq!((answer.len(), answer[0], answer[1]), (13, 0, 1));
        stream
    }

    fn wait_for_in_flight(&self, wanted: usize) {
        let end = Instant::now() + DEADLINE;
        while self.router.stats().in_flight != wanted {
            assert!(Instant::now() < end, "{} in flight, not {wanted}", self.router.stats().in_flight);
            std::thread::yield_now();
        }
    }
}

fn hello(version: u32, client: u64) -> Vec<u8> {
    let mut body = b"\0TRKL".to_vec();
    body.extend(version.to_le_bytes());
    body.extend(client.to_le_bytes());
    body
}

fn framed(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes(), body].concat()
}

fn prompt(asks: u8, tokens: u32) -> Vec<u8> {
    let mut body = vec![asks, 0, 0, 0, 0, 0, 0, 0];
    body.extend((0..tokens).flat_map(u32::to_le_bytes));
    body
}

fn read_frame(stream: &mut UnixStream) -> Vec<u8> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).expect("an answer");
    let mut body = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut body).expect("all of it");
    body
}

fn ask(stream: &mut UnixStream, body: &[u8]) -> Vec<u8> {
    stream.write_all(&framed(body)).expect("it is taken");
    read_frame(stream)
}

fn is_closed(stream: &mut UnixStream) -> bool {
    // A reset is an end as well: the service need not read what it will not answer.
    !matches!(stream.read(&mut [0; 1]), Ok(1..))
}

#[test]
fn questions_may_be_sent_in_one_piece_or_byte_by_byte() {
    let service = start(patient());
    let wire = [framed(&prompt(1, 64)), framed(&prompt(2, 64)), framed(&prompt(1, 64))].concat();
    let mut at_once = service.client(1);
    at_once.write_all(&wire).expect("it is taken");
    let sizes: Vec<_> = (0..3).map(|_| read_frame(&mut at_once).len()).collect();
    assert_eq!(sizes, [41, 25, 41]);
    let mut slow = service.client(2);
    for byte in wire {
        slow.write_all(&[byte]).expect("it is taken");
    }
    for _ in 0..3 {
        assert_eq!(read_frame(&mut slow)[0], 0);
    }
    assert_eq!(service.router.stats().in_flight, 4);
}

#[test]
fn nonsense_is_answered_and_closed() {
    let service = start(patient());
    let mut json = vec![6];
    json.extend(br#"{"call":"dance"}"#);
    let mut odd_tokens = prompt(1, 4);
    odd_tokens.pop();
    let long_fields = vec![1, 0, 0, 0, 255, 255, 255, 255, 1];
    let mut lengths = vec![3, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255];
    lengths.extend([0; 16]);
    for body in
        [vec![10], vec![1], vec![1, 7, 0, 0, 0, 0, 0, 0], json, odd_tokens, long_fields, lengths, vec![5, 1]]
    {
        let mut stream = service.client(1);
        assert_eq!(ask(&mut stream, &body)[0], Status::Malformed as u8, "{body:?}");
        assert!(is_closed(&mut stream), "{body:?}");
    }
    for wire in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &[255; 64], &framed(&prompt(1, 4)), &framed(b"\0TRKX\x01")]
    {
        let mut stream = service.connect();
        stream.write_all(wire).expect("it is taken");
        assert_eq!(read_frame(&mut stream)[0], Status::Malformed as u8, "{wire:?}");
        assert!(is_closed(&mut stream), "{wire:?}");
    }
    assert_eq!(service.router.stats().in_flight, 0);
}

#[test]
fn another_version_is_told_so() {
    let service = start(patient());
    let mut stream = service.connect();
    assert_eq!(ask(&mut stream, &hello(VERSION + 1, 1))[0], Status::Version as u8);
    assert!(is_closed(&mut stream));
}

#[test]
fn half_a_frame_does_not_hold_its_place_for_ever() {
    let service = start(Options { frame_timeout: Duration::from_millis(100), ..patient() });
    let mut idle = service.client(1);
    for half in [&framed(&prompt(1, 64))[..20], &[7], &[]] {
        let mut stream = service.connect();
        stream.write_all(half).expect("it is taken");
        assert!(is_closed(&mut stream), "{half:?}");
    }
    let mut begun = service.client(2);
    begun.write_all(&framed(&prompt(1, 64))[..20]).expect("it is taken");
    assert!(is_closed(&mut begun));
    assert_eq!(
        ask(&mut idle, &prompt(2, 64))[0],
        0,
        "between two questions a client may be as quiet as it likes"
    );
}

#[test]
fn a_client_that_never_reads_is_cut_off_and_stalls_nobody() {
    let service = start(Options { frame_timeout: Duration::from_millis(300), ..patient() });
    let mut deaf = service.client(1);
    let mut good = service.client(2);
    deaf.set_write_timeout(Some(DEADLINE)).expect("a socket");
    let flood = framed(&prompt(2, 16)).repeat(4096);
    let writer = std::thread::spawn(move || {
        let end = Instant::now() + DEADLINE;
        while deaf.write_all(&flood).is_ok() {
            assert!(Instant::now() < end, "it is still read from");
        }
    });
    let mut asked = 0;
    while !writer.is_finished() {
        assert_eq!(ask(&mut good, &prompt(2, 16))[0], 0);
        asked += 1;
    }
    writer.join().expect("the deaf client was cut off");
    assert!(asked > 0);
}

#[test]
fn more_connections_than_allowed_are_refused_and_places_become_free() {
    let service = start(Options { max_connections: 2, ..patient() });
    let (first, _second) = (service.client(1), service.client(2));
    let mut third = service.connect();
    assert_eq!(read_frame(&mut third)[0], Status::Full as u8);
    drop(first);
    let end = Instant::now() + DEADLINE;
    while ask_hello(&service)[0] != 0 {
        assert!(Instant::now() < end, "no place became free");
    }
}

fn ask_hello(service: &Service) -> Vec<u8> {
    let mut stream = service.connect();
    let _ = stream.write_all(&framed(&hello(VERSION, 3)));
    read_frame(&mut stream)
}

#[test]
fn what_a_dead_client_had_booked_is_released_once_it_is_gone_for_good() {
    let service = start(Options { grace: Duration::from_millis(50), ..patient() });
    let (mut one, mut same, mut other) = (service.client(1), service.client(1), service.client(2));
    for stream in [&mut one, &mut same, &mut other] {
        assert_eq!(ask(stream, &prompt(1, 64))[0], 0);
    }
    drop(one);
    drop(same);
    service.wait_for_in_flight(1);
    drop(other);
    service.wait_for_in_flight(0);
}

#[test]
fn what_an_answer_that_nobody_read_had_booked_is_released() {
    let service = start(patient());
    let (mut reads, mut leaves) = (service.client(1), service.client(1));
    assert_eq!(ask(&mut reads, &prompt(1, 64))[0], 0);
    drop(reads);
    leaves.write_all(&framed(&prompt(1, 64))).expect("it is taken");
    service.wait_for_in_flight(2);
    drop(leaves);
    service.wait_for_in_flight(1);
}

#[test]
fn a_batch_is_booked_whole_or_not_at_all() {
    let service = start(patient());
    let mut stream = service.client(1);
    let batch = |lengths: &[u32], fields: &[u8]| {
        let mut body = vec![3, 0, 0, 0];
        body.extend((fields.len() as u32).to_le_bytes());
        body.extend((lengths.len() as u32).to_le_bytes());
        body.extend(fields);
        body.extend(lengths.iter().flat_map(|length| length.to_le_bytes()));
        body.extend((0..lengths.iter().sum()).flat_map(u32::to_le_bytes));
        body
    };
    assert_eq!(ask(&mut stream, &batch(&[16, 0, 48], &[])).len(), 1 + 3 * 40);
    assert_eq!(service.router.stats().in_flight, 3);
    let nobody = [5, 0, 0, 0, 0];
    assert_eq!(ask(&mut stream, &batch(&[16, 16], &nobody))[0], Status::NoWorker as u8);
    assert_eq!(service.router.stats().in_flight, 3);
    assert_eq!(ask(&mut stream, &prompt(2, 16))[0], 0, "the connection goes on");
}

#[test]
fn events_name_a_worker_and_bring_a_payload() {
    let service = start(patient());
    let mut stream = service.client(1);
    let mut events = |name: &[u8], payload: &[u8]| {
        ask(&mut stream, &[&[8][..], &(name.len() as u32).to_le_bytes(), name, payload].concat())
    };
    // MessagePack of [0.0, [], 0]: a batch without events.
    let empty = [0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x90, 0];
    assert_eq!(events(b"nobody", &empty)[0], Status::UnknownWorker as u8);
    assert_eq!(events(b"a", b"\xc1")[0], Status::Payload as u8);
    assert_eq!(events(b"a", &empty), [0; 34]);
    assert_eq!(ask(&mut stream, &[8, 200, 0, 0, 0, b'w'])[0], Status::Malformed as u8);
}

#[test]
fn only_this_user_may_connect_and_only_to_one_service() {
    let mut service = start(patient());
    let path = service.sidecar.path().to_owned();
    assert_eq!(std::fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
    let again = |path: &PathBuf| Sidecar::start(Arc::clone(&service.router), path, patient(), || Millis(1));
    assert!(matches!(again(&path), Err(Error::Listen { .. })));
    let file = path.with_extension("txt");
    std::fs::write(&file, "mine").expect("a file");
    assert!(matches!(again(&file), Err(Error::Listen { .. })));
    assert_eq!(std::fs::read(&file).expect("it is still there"), b"mine");
    let others = path.with_extension("datagram");
    let _bound = UnixDatagram::bind(&others).expect("a socket");
    assert!(matches!(again(&others), Err(Error::Listen { .. })), "somebody listens, if not to streams");
    let stale = path.with_extension("stale");
    drop(UnixListener::bind(&stale).expect("a socket"));
    assert!(again(&stale).is_ok(), "nobody listens there");
    service.sidecar.close();
    assert!(!path.exists() && UnixStream::connect(&path).is_err());
}

#[test]
fn close_is_certain_and_removes_no_file_but_its_own() {
    let mut removed = start(patient());
    std::fs::remove_file(removed.sidecar.path()).expect("it is there");
    removed.sidecar.close();
    let mut replaced = start(patient());
    let path = replaced.sidecar.path().to_owned();
    std::fs::remove_file(&path).expect("it is there");
    let _other = UnixListener::bind(&path).expect("a socket");
    replaced.sidecar.close();
    assert!(UnixStream::connect(&path).is_ok());
}

#[test]
fn close_ends_every_connection() {
    let mut service = start(patient());
    let mut streams = [service.client(1), service.client(2), service.connect()];
    service.sidecar.close();
    assert!(streams.iter_mut().all(is_closed));
}
