//! Runs one mock worker until Enter is pressed: `cargo run --example mock_worker -- [port] [time_scale]`.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};

use trunkline_sim::{MockWorker, MockWorkerConfig};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let port = arguments.next().map_or(Ok(0), |port| port.parse())?;
    let time_scale = arguments.next().map_or(Ok(1.0), |scale| scale.parse())?;
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let worker = MockWorker::start(MockWorkerConfig { listen, time_scale, ..MockWorkerConfig::default() })?;
    println!("{}", worker.url());
    std::io::stdin().read_line(&mut String::new())?;
    println!("{:?}", worker.stats());
    worker.close();
    Ok(())
}
