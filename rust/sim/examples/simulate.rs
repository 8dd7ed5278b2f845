//! Runs the simulation that standard input describes (see `trunkline_sim::des::Spec`) and prints its figures as JSON; the file
//! of a trace is the first argument.
//!
//! ```console
//! echo '{"source": {"scenario": {"name": "aws5@.95"}}, "policy": "kv_aware"}' | cargo run --release --example simulate
//! ```

use std::error::Error;
use std::io::Read;
use std::ops::ControlFlow;

use trunkline_sim::des::Spec;

fn main() -> Result<(), Box<dyn Error>> {
    let mut json = Vec::new();
    std::io::stdin().read_to_end(&mut json)?;
    let trace = std::env::args().nth(1).map(std::fs::read_to_string).transpose()?;
    let found = Spec::parse(&json)?.run(trace.as_deref(), |_| ControlFlow::Continue(()))?;
    println!("{}", String::from_utf8(found.to_json())?);
    Ok(())
}
