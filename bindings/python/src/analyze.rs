//! `_analyze`: what logs of requests say about prefix-aware routing; `python/trunkline/analyze` gives it types.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use trunkline_sim::analyze::{Analysis, AnalyzeOptions, AnalyzeProgress};

use crate::error;
use crate::watch::Watch;

/// Standard input, as the command line names it.
const STDIN: &str = "-";

/// Longest wait for input between two looks at signals: 100 ms.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// A file that is interrupted while it has nothing to read, so that a signal is never waited out: one that arrives just before
/// a read interrupts nothing.
struct Polled<F>(F);

impl<F: Read + AsFd> Read for Polled<F> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let ready = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&WAIT))?;
        if ready == 0 {
            return Err(ErrorKind::Interrupted.into());
        }
        match self.0.read(buffer) {
            // Somebody else has read it.
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err(ErrorKind::Interrupted.into()),
            done => done,
        }
    }
}

/// Opens a file, or standard input without the buffer that would hide from a poll what was read ahead. A FIFO that nobody
/// writes to yet is not waited for here.
fn open(path: &Path) -> std::io::Result<File> {
    if path == Path::new(STDIN) {
        return Ok(std::io::stdin().as_fd().try_clone_to_owned()?.into());
    }
    File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)
}

/// Analyse logs without the GIL and return the findings as JSON.
///
/// options: JSON, see `trunkline.analyze.spec.Options`.  paths: files in their order; - is standard input.  progress: called every
/// 100 ms with the bytes read, the requests found and the share of the forecasts that is done; False ends the analysis, and
/// the findings are those of what was read until then. What it or a signal handler raises is raised here.
///
/// Raises ConfigError for a value out of range, OSError for a file that cannot be opened, TrunklineError if no request is found.
#[expect(clippy::needless_pass_by_value, reason = "PyO3 extracts them by value")]
#[pyfunction]
#[pyo3(name = "_analyze", signature = (options, paths, *, progress=None))]
pub(crate) fn analyze<'py>(
    py: Python<'py>,
    options: &[u8],
    paths: Vec<PathBuf>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let options = AnalyzeOptions::parse(options).map_err(|refused| error::simulation(py, refused))?;
    let mut watch = Watch::new(progress);
    let found = py.detach(|| {
        let mut analysis = Analysis::new(options);
        let mut look = |at: AnalyzeProgress| {
            watch.look(at.waits, |py, progress| progress.call1(py, (at.read_bytes, at.requests, at.forecast)))
        };
        for path in &paths {
            // A signal at any moment ends the reading of all files.
            let mut ended = false;
            let mut look = |at| {
                let flow: ControlFlow<()> = look(at);
                ended |= flow.is_break();
                flow
            };
            let file = open(path).map_err(|refused| (path, refused))?;
            analysis.read(&path.to_string_lossy(), Polled(file), &mut look);
            if ended {
                break;
            }
        }
        Ok(analysis.finish(&mut look))
    });
    watch.raised()?;
    let found = found.map_err(|(path, refused)| error::io(&path.display().to_string(), &refused))?;
    let found = found.map_err(|refused| error::simulation(py, refused))?;
    Ok(PyBytes::new(py, &found.to_json()))
}
