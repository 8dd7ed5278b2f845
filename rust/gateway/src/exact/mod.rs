//! The exact view of workers' caches: their events come in, and prompts are looked up by what they tell.
//!
//! A worker that publishes KV events is followed ([`feeds`]); what it stores is spelled by the vocabulary of its model. A
//! request's prompt is rendered to the text that the worker's tokenizer would get, once, before it is placed. Where that is
//! not known to be exact, the request goes by the workers' own views, as if there were no events.
//!
//! Answers tell how much of their prompts was cached, for nothing: [`watch`] compares that with what events had told, and
//! switches a model's exact prompts off while they are wrong. [`sample`] asks an engine now and then for the tokens of a
//! prompt, and names the first byte that differs.

mod feeds;
mod metrics;
mod sample;
mod watch;

use std::cell::RefCell;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use trunkline_core::{ExactPrompt, Millis, Root, Spelling};
use trunkline_text::{Kind, Options, Outcome, Renderer, Scratch};

pub(crate) use self::feeds::{Following, follow};
pub(crate) use self::metrics::{ExactMetrics, view_reason};
pub(crate) use self::sample::sample;
use self::watch::Watch;
use crate::config::{EventsMode, TextConfig};
use crate::error::Error;
use crate::fleet::Snapshot;
use crate::path::PathClass;
use crate::prompt::Located;

/// What a gateway knows of its models' text.
#[derive(Debug, Default)]
pub(crate) struct Exact {
    mode: EventsMode,
    texts: Vec<Text>,
    /// One in so many rendered prompts is compared with the engine's own; 0 for none.
    check_every: u64,
    rendered: AtomicU64,
    /// Prompts by what became of them.
    pub(crate) outcomes: ExactMetrics,
}

/// How the prompts of one model become text, and whether that is right.
#[derive(Debug)]
pub(crate) struct Text {
    /// The model; `None` for all that have no tokenizer of their own.
    model: Option<String>,
    renderer: Renderer,
    pub(crate) watch: Watch,
}

/// A prompt as workers' events have it.
#[derive(Debug)]
pub(crate) struct Prompted {
    bytes: Vec<u8>,
    root: Root,
    /// Whether `bytes` are token ids; else the number of the text that they came from.
    text: Option<usize>,
    /// Whether it is all of the prompt.
    is_whole: bool,
}

impl Prompted {
    pub(crate) fn prompt(&self) -> ExactPrompt<'_> {
        ExactPrompt { bytes: &self.bytes, root: self.root, is_tokens: self.text.is_none(), extras: &[] }
    }

    /// The text whose rendering an answer to this prompt tells about.
    pub(crate) fn watched(&self) -> Option<usize> {
        self.text.filter(|_| self.is_whole)
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Exact {
    /// Reads the tokenizers. Cost: some tenths of a second for each, all at once.
    pub(crate) fn new(mode: EventsMode, tokenizers: &[TextConfig], check_every: u32) -> Result<Self, Error> {
        let load = |config: &TextConfig| {
            let text =
                Text { model: config.model.clone(), renderer: config.load()?, watch: Watch::default() };
            Ok::<Text, Error>(text)
        };
        let texts: Result<Vec<Text>, Error> = std::thread::scope(|scope| {
            let loading: Vec<_> = tokenizers.iter().map(|config| scope.spawn(move || load(config))).collect();
            loading.into_iter().map(|thread| thread.join().expect("loading does not panic")).collect()
        });
        Ok(Self {
            mode,
            texts: texts?,
            check_every: check_every.into(),
            rendered: AtomicU64::new(0),
            outcomes: ExactMetrics::default(),
        })
    }

    /// Whether workers' events are to be followed.
    pub(crate) fn wants_events(&self) -> bool {
        match self.mode {
            EventsMode::Off => false,
            EventsMode::Auto => !self.texts.is_empty(),
            EventsMode::On => true,
        }
    }

    /// The text of a model: its own, or that of all others.
    fn text_of(&self, model: Option<&str>) -> Option<usize> {
        let own = self.texts.iter().position(|text| text.model.is_some() && text.model.as_deref() == model);
        own.or_else(|| self.texts.iter().position(|text| text.model.is_none()))
    }

    /// What spells the tokens of a worker that serves these models.
    fn spelling(&self, models: &[String]) -> Option<&dyn Spelling> {
        let own = models.iter().find_map(|model| self.text_of(Some(model)));
        let at = own.or_else(|| self.text_of(None))?;
        Some(self.texts[at].renderer.vocabulary())
    }

    pub(crate) fn texts(&self) -> impl Iterator<Item = &Text> {
        self.texts.iter()
    }

    pub(crate) fn text(&self, at: usize) -> &Text {
        &self.texts[at]
    }

    /// The prompt as workers' events have it; `None` if it is not known to be exact, or no worker tells any.
    ///
    /// Cost: one pass over the body, and some copies of the prompt's text: 0.2 ms for 100k tokens.
    pub(crate) fn prompt(
        &self,
        class: PathClass,
        body: &[u8],
        located: &Located<'_>,
        snapshot: &Snapshot,
        now: Millis,
    ) -> Option<Prompted> {
        let model = located.model.as_deref();
        // An adapter is its base model's text under a root of its own.
        let base = model.and_then(|model| snapshot.adapters.get(model).map(String::as_str));
        let adapter = base.and(model).map(str::as_bytes);
        let root = Root::of_events(adapter, located.cache_salt().map(str::as_bytes));
        let Some(at) = self.text_of(base.or(model)) else {
            let bytes = located.token_ids()?.iter().flat_map(|id| id.to_le_bytes()).collect();
            return Some(Prompted { bytes, root, text: None, is_whole: true });
        };
        let text = &self.texts[at];
        if !text.watch.is_on(now) {
            self.outcomes.unsupported("switched off");
            return None;
        }
        let kind = match class {
            PathClass::Chat => Kind::Chat,
            PathClass::Completions => Kind::Completion,
            PathClass::Invocations if located.is_chat() => Kind::Chat,
            PathClass::Invocations => Kind::Completion,
            _ => Kind::Other,
        };
        SCRATCH.with_borrow_mut(|scratch| {
            let now_us =
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as i64);
            let (bytes, is_whole) = match text.renderer.render(kind, body, now_us, scratch) {
                Outcome::Whole(bytes) => (bytes, true),
                Outcome::Partial(bytes) => (bytes, false),
                Outcome::Unsupported(reason) => {
                    self.outcomes.unsupported(reason);
                    return None;
                }
            };
            self.outcomes.rendered(is_whole);
            Some(Prompted { bytes: bytes.to_vec(), root, text: Some(at), is_whole })
        })
    }

    /// Whether this rendered prompt is to be compared with the engine's own.
    pub(crate) fn is_sampled(&self) -> bool {
        self.check_every > 0 && self.rendered.fetch_add(1, Ordering::Relaxed).is_multiple_of(self.check_every)
    }
}

impl TextConfig {
    /// Reads the directory. Cost: some tenths of a second.
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    pub fn load(&self) -> Result<Renderer, Error> {
        let refuse = |path: &Path, reason: String| Error::Tokenizer { path: path.to_owned(), reason };
        let chat_template = match &self.chat_template {
            None => None,
            Some(path) => {
                Some(std::fs::read_to_string(path).map_err(|error| refuse(path, error.to_string()))?)
            }
        };
        let options = Options {
            time_zone: self.time_zone.clone(),
            chat_template,
            content_format: self.content_format,
            template_kwargs: self.template_kwargs.clone(),
            excludes_unused_tools: self.excludes_unused_tools,
            ..Options::default()
        };
        Renderer::load(&self.directory, &options).map_err(|error| refuse(&self.directory, error.to_string()))
    }
}
