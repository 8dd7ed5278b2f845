//! `Renderer`: the text that a worker's tokenizer gets, for embedders and for the self-test.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use trunkline_core::Spelling;
use trunkline_gateway::{ContentFormat, EventsMode, TextConfig};
use trunkline_text::{Kind, Outcome, Scratch};

use crate::error;

/// How prompts become text, as `Renderer` and `Gateway` take it.
pub(crate) struct TextArguments<'a> {
    pub(crate) time_zone: &'a str,
    pub(crate) chat_template: Option<PathBuf>,
    pub(crate) content_format: Option<&'a str>,
    pub(crate) template_kwargs: Option<&'a str>,
    pub(crate) excludes_unused_tools: bool,
}

impl TextArguments<'_> {
    /// The settings of one model. Errors: `ConfigError`.
    pub(crate) fn config(
        &self,
        py: Python<'_>,
        model: Option<&str>,
        directory: &Path,
    ) -> PyResult<TextConfig> {
        let content_format = match self.content_format {
            None | Some("auto") => None,
            Some("string") => Some(ContentFormat::Text),
            Some("openai") => Some(ContentFormat::Parts),
            Some(other) => {
                let allowed = "auto, string or openai";
                return Err(error::config(py, "chat_template_content_format", &other, allowed));
            }
        };
        Ok(TextConfig {
            model: model.map(str::to_owned),
            time_zone: self.time_zone.to_owned(),
            chat_template: self.chat_template.clone(),
            content_format,
            template_kwargs: self.template_kwargs.map(str::to_owned),
            excludes_unused_tools: self.excludes_unused_tools,
            ..TextConfig::new(directory)
        })
    }
}

/// Whether events are followed. Errors: `ConfigError`.
pub(crate) fn events_mode(py: Python<'_>, name: &str) -> PyResult<EventsMode> {
    match name {
        "auto" => Ok(EventsMode::Auto),
        "on" => Ok(EventsMode::On),
        "off" => Ok(EventsMode::Off),
        _ => Err(error::config(py, "events", &name, "auto, on or off")),
    }
}

/// Makes of a request's body the text that its worker's tokenizer gets, without tokenizing it.
///
/// Immutable but for its buffers; may be used from any thread, one call at a time each.
///
/// directory: of a model: tokenizer.json, tokenizer_config.json, chat_template.jinja.  time_zone: the worker's, for templates that tell the date.  chat_template: a file, instead of the model's own.
/// chat_template_content_format: auto, string or openai.  chat_template_kwargs: variables for the template, a JSON object.
/// exclude_unused_tools: whether tool_choice "none" takes the tools away. All as the worker was started. Cost: some
/// tenths of a second.
///
/// Raises ConfigError, TokenizerError if the tokenizer's text is not known to be exact.
#[pyclass(frozen, module = "trunkline")]
pub(crate) struct Renderer {
    pub(crate) inner: trunkline_text::Renderer,
    scratch: Mutex<Scratch>,
}

#[pymethods]
impl Renderer {
    #[new]
    #[pyo3(signature = (
        directory, *, time_zone = "UTC", chat_template = None, chat_template_content_format = "auto",
        chat_template_kwargs = None, exclude_unused_tools = false,
    ))]
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 extracts a path by value")]
    fn new(
        py: Python<'_>,
        directory: PathBuf,
        time_zone: &str,
        chat_template: Option<PathBuf>,
        chat_template_content_format: &str,
        chat_template_kwargs: Option<&str>,
        exclude_unused_tools: bool,
    ) -> PyResult<Self> {
        let arguments = TextArguments {
            time_zone,
            chat_template,
            content_format: Some(chat_template_content_format),
            template_kwargs: chat_template_kwargs,
            excludes_unused_tools: exclude_unused_tools,
        };
        let config = arguments.config(py, None, &directory)?;
        let inner = py.detach(|| config.load()).map_err(|refused| error::gateway(py, refused))?;
        Ok(Self { inner, scratch: Mutex::default() })
    }

    /// The bytes that the prompt's tokens spell, for `rendered=` of `Router.route`.
    ///
    /// body: of the request, JSON.  kind: "chat" or "completion".  now: seconds since 1970, for templates that tell the
    /// date. Without the GIL. Raises UnsupportedPromptError if it is not known to be exact; the engine's /tokenize then tells
    /// the token ids, and `spell` their bytes.
    #[pyo3(signature = (body, *, kind = "chat", now = None))]
    fn render<'py>(
        &self,
        py: Python<'py>,
        body: &Bound<'py, PyBytes>,
        kind: &str,
        now: Option<f64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let kind = match kind {
            "chat" => Kind::Chat,
            "completion" => Kind::Completion,
            other => return Err(error::config(py, "kind", &other, "chat or completion")),
        };
        let since_1970 =
            || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
        let now_us = (now.unwrap_or_else(since_1970) * 1e6) as i64;
        let body = body.as_bytes();
        let rendered = py.detach(|| match self.inner.render(kind, body, now_us, &mut self.scratch.lock()) {
            Outcome::Whole(bytes) | Outcome::Partial(bytes) => Ok(bytes.to_vec()),
            Outcome::Unsupported(reason) => Err(reason),
        });
        match rendered {
            Ok(bytes) => Ok(PyBytes::new(py, &bytes)),
            Err(reason) => Err(error::unsupported_prompt(py, reason)),
        }
    }

    /// The bytes that token ids spell. Cost: a look-up for each.
    ///
    /// ids: of the model's tokenizer.  Raises ValueError for an id that the tokenizer does not have.
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 extracts a list of int by value")]
    fn spell<'py>(&self, py: Python<'py>, ids: Vec<u32>) -> PyResult<Bound<'py, PyBytes>> {
        let mut bytes = Vec::new();
        if self.inner.vocabulary().spell(&ids, &mut bytes) {
            Ok(PyBytes::new(py, &bytes))
        } else {
            Err(error::unknown_token())
        }
    }

    /// The bytes that the tokens of a text spell: `text`, normalized as the tokenizer does.
    fn canonical<'py>(&self, py: Python<'py>, text: &str) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.inner.canonical(text))
    }
}
