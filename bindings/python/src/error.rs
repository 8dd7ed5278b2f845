//! The exceptions, and the only place that raises them.
//!
//! `TrunklineError` is the root. Each of the others also inherits the builtin that a caller who has never heard of this
//! package would catch, and keeps its data as attributes.

use std::ffi::CStr;

use pyo3::exceptions::{
    PyException, PyLookupError, PyMemoryError, PyOSError, PyRuntimeError, PyStopIteration, PyTypeError,
    PyValueError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyInt, PyTuple, PyType};
use trunkline_core::{Error, SnapshotFault};

/// The exception classes, made when the module is imported.
struct Classes {
    base: Py<PyType>,
    config: Py<PyType>,
    unknown_worker: Py<PyType>,
    duplicate_worker: Py<PyType>,
    no_worker: Py<PyType>,
    token_id: Py<PyType>,
    snapshot: Py<PyType>,
    payload: Py<PyType>,
    tokenizer: Py<PyType>,
    unsupported_prompt: Py<PyType>,
}

static CLASSES: PyOnceLock<Classes> = PyOnceLock::new();

/// Adds the exception classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let classes = classes(module.py())?;
    let all = [
        &classes.base,
        &classes.config,
        &classes.unknown_worker,
        &classes.duplicate_worker,
        &classes.no_worker,
        &classes.token_id,
        &classes.snapshot,
        &classes.payload,
        &classes.tokenizer,
        &classes.unsupported_prompt,
    ];
    for class in all {
        let class = class.bind(module.py());
        module.add(class.name()?, class)?;
    }
    Ok(())
}

fn classes(py: Python<'_>) -> PyResult<&Classes> {
    CLASSES.get_or_try_init(py, || {
        let base = class(
            py,
            "TrunklineError",
            "Root of all errors of this package.",
            &[py.get_type::<PyException>()],
        )?;
        let child = |name, doc, builtin| class(py, name, doc, &[base.bind(py).clone(), builtin]);
        Ok(Classes {
            config: child(
                "ConfigError",
                "A setting is outside its range; nothing was changed. Attributes: key, value, allowed.",
                py.get_type::<PyValueError>(),
            )?,
            unknown_worker: child(
                "UnknownWorkerError",
                "No worker of this id is in the fleet. Attribute: worker.",
                py.get_type::<PyLookupError>(),
            )?,
            duplicate_worker: child(
                "DuplicateWorkerError",
                "A worker of this id is already in the fleet. Attribute: worker.",
                py.get_type::<PyValueError>(),
            )?,
            no_worker: child(
                "NoWorkerAvailableError",
                "Nobody may take the request. Attributes: known, live, eligible (numbers of workers).",
                py.get_type::<PyRuntimeError>(),
            )?,
            token_id: child(
                "TokenIdError",
                "A token id is outside 0..2**32. Attributes: position, value.",
                py.get_type::<PyValueError>(),
            )?,
            snapshot: child(
                "SnapshotError",
                "These bytes cannot be restored. Attributes: fault (foreign, version, length, checksum or content) and, where \
                 the fault has them, expected and found, else None.",
                py.get_type::<PyValueError>(),
            )?,
            payload: child(
                "PayloadError",
                "This is no message of KV events. Nothing of it was applied.",
                py.get_type::<PyValueError>(),
            )?,
            tokenizer: child(
                "TokenizerError",
                "A tokenizer cannot be read, or its text is not known to be exact.",
                py.get_type::<PyValueError>(),
            )?,
            unsupported_prompt: child(
                "UnsupportedPromptError",
                "What the worker makes of this request is not known to be exact. Attribute: reason.",
                py.get_type::<PyValueError>(),
            )?,
            base,
        })
    })
}

/// `type(name, bases, {...})`: the C API for exceptions takes one base only.
fn class(py: Python<'_>, name: &str, doc: &str, bases: &[Bound<'_, PyType>]) -> PyResult<Py<PyType>> {
    let body = PyDict::new(py);
    body.set_item("__doc__", doc)?;
    body.set_item("__module__", "trunkline")?;
    let made = py.get_type::<PyType>().call1((name, PyTuple::new(py, bases)?, body))?;
    Ok(made.cast_into::<PyType>()?.unbind())
}

/// An instance of one of our classes that carries `data` as attributes.
fn raise<'py>(
    py: Python<'py>,
    class: impl FnOnce(&Classes) -> &Py<PyType>,
    message: &str,
    fill: impl FnOnce(&Bound<'py, PyAny>) -> PyResult<()>,
) -> PyErr {
    let made =
        classes(py).and_then(|classes| class(classes).bind(py).call1((message,))).and_then(|instance| {
            fill(&instance)?;
            Ok(instance)
        });
    made.map_or_else(|failure| failure, PyErr::from_value)
}

/// A message of events that cannot be read.
pub(crate) fn payload(py: Python<'_>, fault: trunkline_events::Fault) -> PyErr {
    raise(py, |all| &all.payload, &format!("not a message of KV events: {fault}"), |_| Ok(()))
}

/// A request whose prompt cannot be rendered.
pub(crate) fn unsupported_prompt(py: Python<'_>, reason: &'static str) -> PyErr {
    let message = format!("this prompt cannot be rendered: {reason}");
    raise(py, |all| &all.unsupported_prompt, &message, |exception| exception.setattr("reason", reason))
}

/// A token id that a vocabulary does not have.
pub(crate) fn unknown_token() -> PyErr {
    PyValueError::new_err("a token id is not one of the tokenizer's")
}

/// An error of the core as a Python exception.
pub(crate) fn core(py: Python<'_>, error: Error) -> PyErr {
    let message = error.to_string();
    match error {
        Error::Config { key, value, allowed } => raise(
            py,
            |all| &all.config,
            &message,
            |exception| {
                exception.setattr("key", key)?;
                exception.setattr("value", value)?;
                exception.setattr("allowed", allowed)
            },
        ),
        Error::UnknownWorker { id } => {
            raise(py, |all| &all.unknown_worker, &message, |exception| exception.setattr("worker", id.0))
        }
        Error::DuplicateWorker { name } => {
            raise(py, |all| &all.duplicate_worker, &message, |exception| exception.setattr("worker", name))
        }
        Error::NoWorkerAvailable { known, live, eligible } => raise(
            py,
            |all| &all.no_worker,
            &message,
            |exception| {
                exception.setattr("known", known)?;
                exception.setattr("live", live)?;
                exception.setattr("eligible", eligible)
            },
        ),
        Error::TokenId { position, value } => raise(
            py,
            |all| &all.token_id,
            &message,
            |exception| {
                exception.setattr("position", position)?;
                exception.setattr("value", value)
            },
        ),
        Error::Snapshot { fault } => {
            let (fault, numbers) = match fault {
                SnapshotFault::Foreign => ("foreign", None),
                SnapshotFault::Version { found, supported } => {
                    ("version", Some((supported.into(), found.into())))
                }
                SnapshotFault::Length { expected, found } => ("length", Some((expected, found))),
                SnapshotFault::Checksum { expected, found } => ("checksum", Some((expected, found))),
                _ => ("content", None),
            };
            let (expected, found): (Option<u64>, Option<u64>) = numbers.unzip();
            raise(
                py,
                |all| &all.snapshot,
                &message,
                |exception| {
                    exception.setattr("fault", fault)?;
                    exception.setattr("expected", expected)?;
                    exception.setattr("found", found)
                },
            )
        }
        _ => raise(py, |all| &all.base, &message, |_| Ok(())),
    }
}

/// No worker of this name is in the fleet.
pub(crate) fn unknown_worker(py: Python<'_>, name: &str) -> PyErr {
    let message = format!("no worker {name:?} is in the fleet");
    raise(py, |all| &all.unknown_worker, &message, |exception| exception.setattr("worker", name))
}

/// A setting of the bindings themselves is outside its range.
pub(crate) fn config(py: Python<'_>, key: &'static str, value: &impl ToString, allowed: &str) -> PyErr {
    core(py, Error::Config { key, value: value.to_string(), allowed: allowed.to_owned() })
}

/// The decision was made by another router (or another process).
pub(crate) fn foreign_decision() -> PyErr {
    PyValueError::new_err("this decision was made by another router")
}

/// The table of routers that C may call is full.
pub(crate) fn no_handle() -> PyErr {
    PyRuntimeError::new_err("this process has lent 1024 routers to C; that is all there is room for")
}

/// An error of the sidecar as a Python exception.
pub(crate) fn sidecar(py: Python<'_>, error: &trunkline_sidecar::Error) -> PyErr {
    use trunkline_sidecar::Error as Sidecar;
    match error {
        Sidecar::Listen { path, source } => io(&format!("cannot listen on {}", path.display()), source),
        Sidecar::Thread { source } => io("cannot start a thread", source),
        _ => raise(py, |all| &all.base, &error.to_string(), |_| Ok(())),
    }
}

/// A lease can be entered once at a time.
pub(crate) fn lease_entered() -> PyErr {
    PyRuntimeError::new_err("this lease is entered already; make one per request")
}

/// There is no room for what was given.
pub(crate) fn no_memory() -> PyErr {
    PyMemoryError::new_err(())
}

/// An awaitable is done; this is how it says so.
pub(crate) fn stop_iteration(value: Py<PyAny>) -> PyErr {
    PyStopIteration::new_err((value,))
}

/// A pickle holds a reason that this version does not know.
pub(crate) fn unknown_reason(reason: &str) -> PyErr {
    PyValueError::new_err(format!("{reason:?} is no reason of a decision in this version"))
}

/// The gateway or mock worker was closed before this call.
pub(crate) fn closed(what: &str) -> PyErr {
    PyRuntimeError::new_err(format!("this {what} is closed"))
}

/// An error of the gateway as a Python exception.
pub(crate) fn gateway(py: Python<'_>, error: trunkline_gateway::Error) -> PyErr {
    use trunkline_gateway::Error as Gateway;
    match error {
        Gateway::Config { key, value, allowed } => config(py, key, &value, allowed),
        Gateway::File { key, path, source } => {
            config(py, key, &path.display(), &format!("a file that can be used ({source})"))
        }
        Gateway::Tokenizer { .. } => raise(py, |all| &all.tokenizer, &error.to_string(), |_| Ok(())),
        Gateway::UnknownWorker { url } => unknown_worker(py, &url),
        Gateway::Router(refused) => core(py, refused),
        Gateway::Listen { ref source, .. } | Gateway::Thread { ref source } => io(&error.to_string(), source),
        _ => raise(py, |all| &all.base, &error.to_string(), |_| Ok(())),
    }
}

/// An error of the mock worker or of a simulation as a Python exception.
pub(crate) fn simulation(py: Python<'_>, error: trunkline_sim::Error) -> PyErr {
    use trunkline_sim::Error as Sim;
    match error {
        Sim::Config { key, value, allowed } => config(py, key, &value, allowed),
        Sim::Router(refused) => core(py, refused),
        Sim::Listen { ref source, .. } | Sim::Thread(ref source) => io(&error.to_string(), source),
        _ => raise(py, |all| &all.base, &error.to_string(), |_| Ok(())),
    }
}

/// The operating system refused; an `OSError` with its number.
pub(crate) fn io(what: &str, cause: &std::io::Error) -> PyErr {
    match cause.raw_os_error() {
        Some(number) => PyOSError::new_err((number, format!("{what}: {cause}"))),
        None => PyOSError::new_err(format!("{what}: {cause}")),
    }
}

/// A host has no address.
pub(crate) fn no_address(host: &str) -> PyErr {
    PyOSError::new_err(format!("host {host:?} has no address"))
}

/// `now` is no time.
pub(crate) fn bad_time(seconds: f64) -> PyErr {
    PyValueError::new_err(format!(
        "now = {seconds}: allowed is a number of seconds >= 0, as time.monotonic() gives it"
    ))
}

const ALLOWED_PROMPTS: &str =
    "allowed are str, bytes, a contiguous buffer of uint32, int32 or int64 token ids, and sequences of int";

/// A prompt of text where only token ids are taken.
pub(crate) fn not_token_ids(object: &Bound<'_, PyAny>) -> PyErr {
    PyTypeError::new_err(format!("a {} is no prompt of token ids", type_name(object)))
}

/// The object is nothing that can be a prompt.
pub(crate) fn not_a_prompt(object: &Bound<'_, PyAny>) -> PyErr {
    PyTypeError::new_err(format!("a {} is no prompt: {ALLOWED_PROMPTS}", type_name(object)))
}

/// A sequence holds something that is no token id.
pub(crate) fn token_item(item: &Bound<'_, PyAny>, position: usize, cause: PyErr) -> PyErr {
    let error = if item.is_instance_of::<PyInt>() {
        let message = format!("token id {item} at position {position} is outside 0..2^32");
        raise(
            item.py(),
            |all| &all.token_id,
            &message,
            |exception| {
                exception.setattr("position", position)?;
                exception.setattr("value", item)
            },
        )
    } else {
        PyTypeError::new_err(format!("item {position} of the prompt, a {}, is no token id", type_name(item)))
    };
    error.set_cause(item.py(), Some(cause));
    error
}

/// A batch call got something without the buffer protocol.
pub(crate) fn not_a_buffer(object: &Bound<'_, PyAny>, name: &str) -> PyErr {
    PyTypeError::new_err(format!("{name}: a {} has no buffer; use numpy or array.array", type_name(object)))
}

/// The buffer holds integers of a kind that is not allowed here.
pub(crate) fn buffer_type(object: &Bound<'_, PyAny>) -> PyErr {
    PyTypeError::new_err(format!(
        "the items of this {} are no token ids: {ALLOWED_PROMPTS}",
        type_name(object)
    ))
}

/// The buffer holds something else than native-endian integers.
pub(crate) fn buffer_format(object: &Bound<'_, PyAny>, format: &CStr) -> PyErr {
    PyTypeError::new_err(format!(
        "the items of this {} have the format {format:?}: {ALLOWED_PROMPTS}, in native byte order",
        type_name(object)
    ))
}

/// The buffer has more or fewer than one dimension.
pub(crate) fn buffer_shape(object: &Bound<'_, PyAny>, dimensions: i32) -> PyErr {
    PyValueError::new_err(format!("this {} has {dimensions} dimensions: allowed is one", type_name(object)))
}

/// The buffer has gaps.
pub(crate) fn buffer_strides(object: &Bound<'_, PyAny>) -> PyErr {
    PyValueError::new_err(format!(
        "this {} is not contiguous: copy it first, for example with numpy.ascontiguousarray",
        type_name(object)
    ))
}

/// The buffer starts at an address that is no multiple of its item size.
pub(crate) fn buffer_alignment(object: &Bound<'_, PyAny>) -> PyErr {
    PyValueError::new_err(format!(
        "the items of this {} are not aligned in memory: copy it first",
        type_name(object)
    ))
}

/// `offsets` of a batch do not cut `tokens` into prompts.
pub(crate) fn offsets(position: usize, value: i64, tokens: usize) -> PyErr {
    PyValueError::new_err(format!(
        "offsets[{position}] = {value}: allowed are ascending numbers from 0 to {tokens}, the number of tokens"
    ))
}

/// `offsets` of a batch is empty.
pub(crate) fn no_offsets() -> PyErr {
    PyValueError::new_err("offsets is empty: for N prompts it holds N + 1 numbers")
}

/// A batch call got an array of another item type.
pub(crate) fn array_type(object: &Bound<'_, PyAny>, name: &str, wanted: &str) -> PyErr {
    PyTypeError::new_err(format!("{name}: a {} of another item type; allowed is {wanted}", type_name(object)))
}

/// `salt` is neither text nor bytes.
pub(crate) fn salt_type(salt: &Bound<'_, PyAny>) -> PyErr {
    PyTypeError::new_err(format!("salt: a {}; allowed are str and bytes", type_name(salt)))
}

/// `eligible` or `exclude` is one string, which would be read letter by letter.
pub(crate) fn one_name(name: &str) -> PyErr {
    PyTypeError::new_err(format!("{name}: allowed is a collection of worker ids, not one string"))
}

fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string())
}
