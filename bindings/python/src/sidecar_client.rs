//! `_SidecarConnection`: what `SidecarRouter` asks through. Questions are written from the prompt's own buffer, and the GIL is
//! free while the sidecar thinks.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::exceptions::{PyEOFError, PyRuntimeError, PyTimeoutError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use trunkline_core::Prompt;
use trunkline_sidecar::{Call, Client, Field, NONE};

use crate::decision::Decision;
use crate::error;
use crate::prompt::{Extras, with_prompt};
use crate::router::{salt_bytes, usage};
use crate::sidecar::seconds;

/// A connection to a sidecar, past its hello. Answers begin with their status; 0 is none.
///
/// One thread's: another one that asks meanwhile gets RuntimeError.
#[pyclass(frozen, weakref, module = "trunkline._core", name = "_SidecarConnection")]
pub(crate) struct SidecarConnection {
    client: Mutex<Client>,
    /// Of its socket.
    #[pyo3(get)]
    descriptor: RawFd,
    /// That of the sidecar.
    #[pyo3(get)]
    tag: u64,
    /// Whether a question was sent and not answered; what comes next would be taken for the answer to another one.
    waits: AtomicBool,
    /// Whether the socket failed.
    is_lost: AtomicBool,
}

#[pymethods]
impl SidecarConnection {
    /// Connect and say hello as `client`, a number that the connections of a process share.
    ///
    /// Returns the connection, what the sidecar said instead (bytes), or why nobody answers (str). Raises ConfigError, and
    /// what a signal's handler does.
    #[staticmethod]
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 extracts a path by value")]
    fn connect(py: Python<'_>, path: PathBuf, timeout_s: f64, client: u64) -> PyResult<Bound<'_, PyAny>> {
        let timeout = timeout(py, timeout_s)?;
        let why = |error| Ok(raised(error).value(py).str()?.into_any());
        let mut asking = match Client::new(timeout) {
            Ok(asking) => asking,
            Err(error) => return why(error),
        };
        if let Err(error) = wait(py, || asking.connect(&path))? {
            return why(error);
        }
        asking.hello(client);
        match wait(py, || asking.wait())?.and_then(|()| asking.welcome()) {
            Ok(Ok(tag)) => {
                let [waits, is_lost] = [false; 2].map(AtomicBool::new);
                let (descriptor, client) = (asking.as_fd().as_raw_fd(), Mutex::new(asking));
                Ok(Bound::new(py, Self { client, descriptor, tag, waits, is_lost })?.into_any())
            }
            Ok(Err(said)) => Ok(PyBytes::new(py, &said).into_any()),
            Err(error) => why(error),
        }
    }

    /// Raises ConfigError for a time-out out of range.
    #[staticmethod]
    fn check_timeout(py: Python<'_>, timeout_s: f64) -> PyResult<()> {
        timeout(py, timeout_s).map(drop)
    }

    /// Whether an answer is outstanding: the connection is of no use then.
    #[getter]
    fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    /// Whether what was raised came from the socket, and not from a signal's handler or from reading the arguments.
    #[getter]
    fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Ask what these bytes say. Raises TimeoutError, EOFError, OSError.
    fn ask<'py>(&self, py: Python<'py>, question: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        self.exchange(py, |out| out.extend_from_slice(question))
    }

    /// Say of a decision what `asked` is, for what needs no more to be said.
    ///
    /// Raises as `ask` does; so do the following, and TypeError and OverflowError where the method of `Router` does.
    fn ask_decision<'py>(
        &self,
        py: Python<'py>,
        asked: u8,
        decision: &Bound<'py, Decision>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.exchange(py, |out| write_decision(out, asked, decision.get()))
    }

    fn complete<'py>(
        &self,
        py: Python<'py>,
        asked: u8,
        decision: &Bound<'py, Decision>,
        prompt_tokens: Option<u32>,
        cached_tokens: Option<u32>,
        completion_tokens: Option<u32>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let decision = decision.get();
        let said = usage(&decision.core, prompt_tokens, cached_tokens, completion_tokens);
        let said = said.map_or([NONE; 3], |usage| {
            [usage.prompt_tokens, usage.cached_tokens.unwrap_or(NONE), usage.completion_tokens]
        });
        self.exchange(py, |out| {
            write_decision(out, asked, decision);
            out.extend(said.iter().flat_map(|tokens| tokens.to_le_bytes()));
        })
    }

    fn apply_events<'py>(
        &self,
        py: Python<'py>,
        asked: u8,
        id: &str,
        payload: &Bound<'py, PyBytes>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.exchange(py, |out| {
            out.push(asked);
            out.extend_from_slice(&(id.len() as u32).to_le_bytes());
            out.extend_from_slice(id.as_bytes());
            out.extend_from_slice(payload.as_bytes());
        })
    }

    fn add_worker<'py>(
        &self,
        py: Python<'py>,
        id: String,
        url: Option<String>,
        weight: u32,
        capacity_tokens: Option<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.call(py, &Call::AddWorker { id, url, weight, capacity_tokens })
    }

    fn remove_worker<'py>(&self, py: Python<'py>, id: String) -> PyResult<Bound<'py, PyBytes>> {
        self.call(py, &Call::RemoveWorker { id })
    }

    fn drain_worker<'py>(
        &self,
        py: Python<'py>,
        id: String,
        draining: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.call(py, &Call::DrainWorker { id, draining })
    }

    fn reset_worker<'py>(&self, py: Python<'py>, id: String) -> PyResult<Bound<'py, PyBytes>> {
        self.call(py, &Call::ResetWorker { id })
    }

    fn set_load<'py>(
        &self,
        py: Python<'py>,
        id: String,
        capacity_tokens: Option<u64>,
        healthy: Option<bool>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.call(py, &Call::SetLoad { id, capacity_tokens, healthy })
    }

    fn set_cache_view<'py>(
        &self,
        py: Python<'py>,
        id: String,
        view: String,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.call(py, &Call::SetCacheView { id, view })
    }

    fn forget_events<'py>(&self, py: Python<'py>, id: String) -> PyResult<Bound<'py, PyBytes>> {
        self.call(py, &Call::ForgetEvents { id })
    }

    fn set_policy<'py>(
        &self,
        py: Python<'py>,
        policy: String,
        prefix_length: u32,
        concurrency_threshold: Option<u32>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.call(py, &Call::SetPolicy { policy, prefix_length, concurrency_threshold })
    }

    fn workers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.call(py, &Call::Workers)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.call(py, &Call::Stats)
    }

    /// Ask about a prompt of any of the forms that `Router.route` takes, with what that is told beside it.
    ///
    /// Raises as `ask` does, and what `route` does of a prompt.
    fn ask_prompt<'py>(
        &self,
        py: Python<'py>,
        asked: u8,
        prompt: &Bound<'py, PyAny>,
        model: Option<&str>,
        salt: Option<&Bound<'py, PyAny>>,
        eligible: Option<&Bound<'py, PyAny>>,
        exclude: Option<&Bound<'py, PyAny>>,
        lora: Option<&str>,
        extras: Option<Extras>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let fields = fields(model, salt, eligible, exclude, lora, extras)?;
        with_prompt(prompt, |prompt| {
            checked(py, &prompt)?;
            self.exchange(py, |out| write_prompt(out, asked, &prompt, &fields))
        })
    }

    /// Ask about prompts of token ids, a sequence of such as `ask_prompt` takes. Raises as that does.
    fn ask_many<'py>(
        &self,
        py: Python<'py>,
        asked: u8,
        prompts: &Bound<'py, PyAny>,
        model: Option<&str>,
        salt: Option<&Bound<'py, PyAny>>,
        eligible: Option<&Bound<'py, PyAny>>,
        exclude: Option<&Bound<'py, PyAny>>,
        lora: Option<&str>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let fields = fields(model, salt, eligible, exclude, lora, None)?;
        let (mut lengths, mut ids) = (Vec::new(), Vec::new());
        for prompt in prompts.try_iter()? {
            let prompt = prompt?;
            let before = ids.len();
            with_prompt(&prompt, |lent| {
                checked(py, &lent)?;
                if matches!(lent, Prompt::Text(_)) {
                    return Err(error::not_token_ids(&prompt));
                }
                write_content(&mut ids, &lent);
                Ok(())
            })?;
            lengths.push(((ids.len() - before) / 4) as u32);
        }
        self.exchange(py, |out| {
            out.extend_from_slice(&[asked, 0, 0, 0]);
            out.extend_from_slice(&(fields.len() as u32).to_le_bytes());
            out.extend_from_slice(&(lengths.len() as u32).to_le_bytes());
            out.extend_from_slice(&fields);
            out.extend(lengths.iter().flat_map(|length| length.to_le_bytes()));
            out.extend_from_slice(&ids);
        })
    }
}

impl SidecarConnection {
    fn call<'py>(&self, py: Python<'py>, call: &Call) -> PyResult<Bound<'py, PyBytes>> {
        self.exchange(py, |out| call.put(out))
    }

    fn exchange<'py>(
        &self,
        py: Python<'py>,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut held =
            self.client.try_lock().ok_or_else(|| PyRuntimeError::new_err("a connection is one thread's"))?;
        let client: &mut Client = &mut held;
        client.write(write);
        self.waits.store(true, Ordering::Relaxed);
        let answered = wait(py, || client.wait())?.and_then(|()| Ok(PyBytes::new(py, client.answer()?)));
        self.waits.store(false, Ordering::Relaxed);
        answered.map_err(|error| {
            self.is_lost.store(true, Ordering::Relaxed);
            raised(error)
        })
    }
}

/// Waits for the socket without the GIL; handlers of signals run meanwhile. Errors: theirs; within, the socket's.
fn wait(py: Python<'_>, mut socket: impl FnMut() -> io::Result<()> + Send) -> PyResult<io::Result<()>> {
    loop {
        match py.detach(&mut socket) {
            Err(error) if error.kind() == ErrorKind::Interrupted => py.check_signals()?,
            done => return Ok(done),
        }
    }
}

fn timeout(py: Python<'_>, timeout_s: f64) -> PyResult<Duration> {
    seconds(py, "timeout_s", timeout_s)
}

fn raised(error: io::Error) -> PyErr {
    match error.kind() {
        ErrorKind::TimedOut => PyTimeoutError::new_err("timed out"),
        ErrorKind::UnexpectedEof => PyEOFError::new_err("the sidecar closed the connection"),
        ErrorKind::InvalidData => PyEOFError::new_err("what answers is no sidecar"),
        _ => error.into(),
    }
}

fn write_decision(out: &mut Vec<u8>, asked: u8, decision: &Decision) {
    out.push(asked);
    out.extend_from_slice(&decision.router.to_le_bytes());
    out.extend_from_slice(&decision.core.id.to_u64().to_le_bytes());
}

fn write_prompt(out: &mut Vec<u8>, asked: u8, prompt: &Prompt<'_>, fields: &[u8]) {
    out.extend_from_slice(&[asked, u8::from(matches!(prompt, Prompt::Text(_))), 0, 0]);
    out.extend_from_slice(&(fields.len() as u32).to_le_bytes());
    out.extend_from_slice(fields);
    write_content(out, prompt);
}

fn checked(py: Python<'_>, prompt: &Prompt<'_>) -> PyResult<()> {
    prompt.check().map_err(|refused| error::core(py, refused))
}

/// Text as it is, token ids as little-endian `u32`.
fn write_content(out: &mut Vec<u8>, prompt: &Prompt<'_>) {
    match prompt {
        Prompt::Text(pieces) => pieces.iter().for_each(|piece| out.extend_from_slice(piece)),
        Prompt::Tokens(ids) => out.extend_from_slice(bytemuck::cast_slice(ids)),
        Prompt::WideTokens(ids) => {
            out.extend(ids.iter().flat_map(|&id| (id as u32).to_le_bytes()));
        }
    }
}

/// The bytes that tell a sidecar what `route` is told beside the prompt.
fn fields(
    model: Option<&str>,
    salt: Option<&Bound<'_, PyAny>>,
    eligible: Option<&Bound<'_, PyAny>>,
    exclude: Option<&Bound<'_, PyAny>>,
    lora: Option<&str>,
    extras: Option<Extras>,
) -> PyResult<Vec<u8>> {
    let mut out = Vec::new();
    if let Some(model) = model {
        Field::Model.put(model.as_bytes(), &mut out);
    }
    if let Some(salt) = salt {
        Field::Salt.put(salt_bytes(salt)?, &mut out);
    }
    if eligible.is_some() {
        Field::NamedOnly.put(b"", &mut out);
    }
    for (field, names, what) in
        [(Field::Eligible, eligible, "eligible"), (Field::Excluded, exclude, "exclude")]
    {
        let Some(names) = names else { continue };
        if names.is_instance_of::<PyString>() {
            return Err(error::one_name(what));
        }
        for name in names.try_iter()? {
            field.put(name?.cast::<PyString>()?.to_str()?.as_bytes(), &mut out);
        }
    }
    if let Some(lora) = lora {
        Field::Lora.put(lora.as_bytes(), &mut out);
    }
    if let Some(Extras(extras)) = extras {
        Field::Extras.put(&extras.into_iter().flat_map(u64::to_le_bytes).collect::<Vec<u8>>(), &mut out);
    }
    Ok(out)
}
