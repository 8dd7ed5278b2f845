//! A gateway without Python: `serve --port 8080 --admin-port 8081 --policy kv_aware --worker http://127.0.0.1:8000
//! ...`
//!
//! SIGTERM and SIGINT drain it: the port closes, running requests finish, then it exits with 0.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use trunkline_core::{Policy, Router, RouterConfig};
use trunkline_gateway::{Gateway, GatewayConfig};

/// Longest time that running requests get to finish.
const DRAIN_LIMIT: Duration = Duration::from_secs(600);

fn main() -> Result<(), Box<dyn Error>> {
    let (mut host, mut port, mut admin_port) = (IpAddr::V4(Ipv4Addr::LOCALHOST), 8080, 8081);
    let mut routing = RouterConfig::default();
    let mut config = GatewayConfig::default();
    let mut workers = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} wants a value"))?;
        match name.as_str() {
            "--host" => host = value.parse()?,
            "--port" => port = value.parse()?,
            "--admin-port" => admin_port = value.parse()?,
            "--policy" => routing.policy = Policy::parse(&value)?,
            "--threads" => config.threads = value.parse()?,
            "--memory-budget-mib" => routing.memory_budget = value.parse::<usize>()? << 20,
            "--worker" => workers.push(value),
            _ => return Err(format!("{name}: no such argument").into()),
        }
    }
    config.listen = SocketAddr::new(host, port).into();
    config.admin_listen = Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), admin_port));
    let gateway = Gateway::start(config, Arc::new(Router::new(routing)?), &workers)?;
    println!("listening on {}", gateway.listens_on());

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        std::io::Result::Ok(())
    })?;
    gateway.drain();
    let finished = gateway.wait_drained(DRAIN_LIMIT);
    gateway.close();
    if finished { Ok(()) } else { Err("requests were cut: the time to drain is over".into()) }
}
