//! From the body of a request to the text that its engine's tokenizer sees.

use std::path::Path;

use jiff::tz::TimeZone;
use memchr::memmem;
use minijinja::Value;
use simdutf8::basic::from_utf8;
use trunkline_core::events::Spelling;

use crate::engine::{Chat, EngineRules, MARK, VLLM, read_messages, read_tools, refusal, template_kwargs};
use crate::error::{Error, Result};
use crate::json::{Arena, Json, parse, parse_once};
use crate::template::format::{ContentFormat, detect, knows_developer};
use crate::template::object::{list, value};
use crate::template::{Limits, Template, is_raised};
use crate::tokenizer::{Config, SpecialToken, Tokenizer, malformed, read};

/// What an engine was started with, as far as prompts depend on it.
#[derive(Debug, Clone)]
pub struct Options {
    /// The engine's rules.
    pub rules: &'static EngineRules,
    /// The engine's time zone, as templates tell dates in it; an IANA name.
    pub time_zone: String,
    /// A template instead of the model's own (`--chat-template`).
    pub chat_template: Option<String>,
    /// How the template takes content (`--chat-template-content-format`); else read off the template.
    pub content_format: Option<ContentFormat>,
    /// Variables for the template, a JSON object (`--default-chat-template-kwargs`).
    pub template_kwargs: Option<String>,
    /// Whether `tool_choice: none` takes the tools away (`--exclude-tools-when-tool-choice-none`).
    pub excludes_unused_tools: bool,
    /// Bounds of one rendering.
    pub limits: Limits,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rules: &VLLM,
            time_zone: "UTC".into(),
            chat_template: None,
            content_format: None,
            template_kwargs: None,
            excludes_unused_tools: false,
            limits: Limits::default(),
        }
    }
}

/// What a body is a request for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
    /// Anything else, whose prompt is made in ways that are not followed.
    Other,
}

/// The bytes that a prompt's tokens spell, or why they are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<'s> {
    /// The whole prompt.
    Whole(&'s [u8]),
    /// The prompt up to its first image, sound or video.
    Partial(&'s [u8]),
    /// Not known; the reason is one of a few, fit for a metric's label.
    Unsupported(&'static str),
}

/// Buffers of a rendering, to be used again.
#[derive(Debug, Default)]
pub struct Scratch {
    arena: Arena,
    text: Vec<u8>,
    spelled: Vec<u8>,
}

/// Makes prompts' text for one model. Immutable; sharing it between threads is free.
#[derive(Debug)]
pub struct Renderer {
    rules: &'static EngineRules,
    tokenizer: Tokenizer,
    /// Special tokens and the server's variables.
    names: Vec<(Value, Value)>,
    /// For requests without tools, and with them; or why there is none.
    templates: std::result::Result<[Form; 2], &'static str>,
    excludes_unused_tools: bool,
}

/// A template and what its engine reads off it.
#[derive(Debug)]
struct Form {
    template: Template,
    format: ContentFormat,
    knows_developer: bool,
}

/// Ends the text of a message that is to be continued. Source: `apply_chat_template` of transformers.
const CONTINUE: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

impl Renderer {
    /// Reads a model's directory: its vocabulary, its special tokens and its chat template.
    ///
    /// Cost: the files are read and parsed once; what is kept of them is the table of tokens and the templates.
    ///
    /// # Errors
    /// A file cannot be read or is malformed, the tokenizer loses text, the template does not compile, the time zone
    /// is unknown. A directory without a template is no error: its chats are [`Outcome::Unsupported`].
    pub fn load(directory: &Path, options: &Options) -> Result<Self> {
        let config = Config::load(directory)?;
        let tokenizer = Tokenizer::load(directory, &config)?;
        let mut names = Vec::new();
        if let Some(kwargs) = &options.template_kwargs {
            let entries = parse_once(kwargs, |kwargs, arena| match kwargs {
                Json::Map(entries) => {
                    names.extend(
                        entries.iter().map(|(key, item)| (Value::from(key.get(arena)), value(item, arena))),
                    );
                    Ok(())
                }
                _ => Err(()),
            });
            if entries != Ok(Ok(())) {
                return Err(malformed(Path::new("template_kwargs"), "no JSON object"));
            }
        }
        for (name, token) in &config.special_tokens {
            let token = match token {
                SpecialToken::One(token) => Value::from(token.as_str()),
                SpecialToken::Many(tokens) => list(tokens.iter().map(|token| Value::from(token.as_str()))),
            };
            names.push((Value::from(name.as_str()), token));
        }
        Ok(Self {
            rules: options.rules,
            tokenizer,
            names,
            templates: templates(directory, &config, options)?,
            excludes_unused_tools: options.excludes_unused_tools,
        })
    }

    /// The bytes that the tokens of `body`'s prompt spell. `now_us` is the time in microseconds since 1970; templates
    /// tell the date by it.
    ///
    /// Cost: one pass to read the body and three copies of its text; about 0.6 ns for a byte of a long chat, and some
    /// microseconds (`examples/render_cost.rs`). Bounded by [`Limits`].
    pub fn render<'s>(&self, kind: Kind, body: &[u8], now_us: i64, scratch: &'s mut Scratch) -> Outcome<'s> {
        let Scratch { arena, text, spelled } = scratch;
        text.clear();
        spelled.clear();
        let Ok(body) = from_utf8(body) else { return Outcome::Unsupported("the body is no UTF-8") };
        arena.reset(body.len());
        let Ok(body) = parse(body, arena) else { return Outcome::Unsupported("the body is no JSON") };
        if let Some(option) = refusal(self.rules, &body, arena) {
            return Outcome::Unsupported(option);
        }
        let rendered = match kind {
            Kind::Chat => self.chat(&body, arena, now_us, text),
            Kind::Completion => self.completion(&body, arena, text),
            Kind::Other => Err("no prompt of a known kind"),
        };
        let made = match rendered {
            Ok(made) => made,
            Err(reason) => return Outcome::Unsupported(reason),
        };
        if made.is_spelled {
            return Outcome::Whole(text);
        }
        let affixes = match (made.has_affixes, &self.tokenizer.affixes) {
            (false, _) => None,
            (true, Some(affixes)) => Some(affixes),
            (true, None) => return Outcome::Unsupported("which special tokens are added is not known"),
        };
        let Ok(rendered) = from_utf8(text) else {
            return Outcome::Unsupported("the text is no UTF-8");
        };
        let canonical = self.tokenizer.canonical.apply(rendered);
        let is_changed = matches!(canonical, std::borrow::Cow::Owned(_));
        if is_changed || affixes.is_some_and(|affixes| !affixes.is_empty()) {
            spelled.extend(affixes.iter().flat_map(|affixes| &affixes.before));
            spelled.extend_from_slice(canonical.as_bytes());
            spelled.extend(affixes.iter().filter(|_| !made.is_partial).flat_map(|affixes| &affixes.after));
            std::mem::swap(text, spelled);
        }
        if made.is_partial { Outcome::Partial(text) } else { Outcome::Whole(text) }
    }

    /// The bytes that these token ids spell; `None` if one is unknown. For a test against the real tokenizer.
    pub fn spells(&self, ids: &[u32]) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.tokenizer.vocabulary.spell(ids, &mut bytes).then_some(bytes)
    }

    /// The bytes that the tokens of `text` spell. For a test against the real tokenizer.
    pub fn canonical(&self, text: &str) -> Vec<u8> {
        self.tokenizer.canonical.apply(text).into_owned().into_bytes()
    }

    /// The table of tokens, for the events of this model's workers.
    pub fn vocabulary(&self) -> &crate::Vocabulary {
        &self.tokenizer.vocabulary
    }

    /// Why no chat can be rendered, if none can.
    pub fn chats_unsupported(&self) -> Option<&'static str> {
        self.templates.as_ref().err().copied()
    }

    fn chat(
        &self,
        body: &Json<'_>,
        arena: &Arena,
        now_us: i64,
        text: &mut Vec<u8>,
    ) -> std::result::Result<Made, &'static str> {
        let forms = self.templates.as_ref().map_err(|reason| *reason)?;
        let flag = |name: &str, default: bool| match body.get(name, arena) {
            None | Some(Json::Null) => Ok(default),
            Some(Json::Bool(flag)) => Ok(*flag),
            Some(_) => Err("a flag that is none"),
        };
        let is_unused = self.excludes_unused_tools
            && body.get("tool_choice", arena).and_then(|choice| choice.as_text(arena)) == Some("none");
        let tools = if is_unused { Value::from(()) } else { read_tools(self.rules, body, arena)? };
        let form = &forms[usize::from(!tools.is_none())];
        let mut chat: Chat<'_> = read_messages(self.rules, body, arena, form.format, form.knows_developer)?;
        let is_continued = flag("continue_final_message", false)?;
        let is_opened = flag("add_generation_prompt", true)?;
        if is_continued {
            if is_opened {
                return Err("a last message to be continued before a new one");
            }
            chat.tag_last(CONTINUE)?;
        }
        let has_items = chat.has_items;
        let mut context = vec![
            (Value::from("messages"), chat.into_value()),
            (Value::from("tools"), tools),
            (Value::from("add_generation_prompt"), Value::from(is_opened)),
        ];
        template_kwargs(self.rules, body, arena, &mut context)?;
        context.extend(self.names.iter().cloned());
        context.push((Value::from("documents"), Value::from(())));
        form.template.render(context, now_us, text).map_err(|error| match is_raised(&error) {
            true => "the template raised an exception",
            false => "the template failed",
        })?;
        if is_continued {
            cut_continued(text)?;
        }
        if has_items {
            let at = memmem::find(text, MARK.as_bytes()).ok_or("the template left out an item")?;
            text.truncate(at);
        }
        Ok(Made { is_partial: has_items, has_affixes: flag("add_special_tokens", false)?, is_spelled: false })
    }

    fn completion(
        &self,
        body: &Json<'_>,
        arena: &Arena,
        text: &mut Vec<u8>,
    ) -> std::result::Result<Made, &'static str> {
        let has_affixes = !matches!(body.get("add_special_tokens", arena), Some(Json::Bool(false)));
        if body.get("suffix", arena).is_some_and(|suffix| *suffix != Json::Null) {
            return Err("suffix");
        }
        let prompt = body.get("prompt", arena).ok_or("no prompt")?;
        let prompt = match prompt {
            Json::List(prompts) => match prompts.as_slice() {
                [only @ (Json::Text(_) | Json::List(_))] => only,
                [Json::Int(_), ..] => prompt,
                _ => return Err("more than one prompt"),
            },
            prompt => prompt,
        };
        match prompt {
            Json::Text(prompt) => {
                text.extend_from_slice(prompt.get(arena).as_bytes());
                Ok(Made { is_partial: false, has_affixes, is_spelled: false })
            }
            Json::List(ids) => {
                let ids: Option<Vec<u32>> = ids
                    .iter()
                    .map(|id| match id {
                        Json::Int(id) => u32::try_from(*id).ok(),
                        _ => None,
                    })
                    .collect();
                let is_spelled = ids.is_some_and(|ids| self.tokenizer.vocabulary.spell(&ids, text));
                match is_spelled {
                    true => Ok(Made { is_partial: false, has_affixes: false, is_spelled }),
                    false => Err("a token id that is unknown"),
                }
            }
            _ => Err("a prompt that is no text"),
        }
    }
}

/// What the text in the buffer is.
struct Made {
    is_partial: bool,
    has_affixes: bool,
    /// It is made of token ids.
    is_spelled: bool,
}

/// Cuts the text behind the message that is to be continued. Source: `apply_chat_template` of transformers.
fn cut_continued(text: &mut Vec<u8>) -> std::result::Result<(), &'static str> {
    let at = memmem::rfind(text, CONTINUE.trim_end().as_bytes())
        .ok_or("the template left out the last message")?;
    let is_kept = text[at..].starts_with(CONTINUE.as_bytes());
    text.truncate(at);
    if !is_kept {
        // The template trims its messages, and the tag had hidden the white space before it.
        let kept = from_utf8(text).map_or(text.len(), |text| text.trim_end().len());
        text.truncate(kept);
    }
    Ok(())
}

/// The templates of a directory for requests without tools and with them.
fn templates(
    directory: &Path,
    config: &Config,
    options: &Options,
) -> Result<std::result::Result<[Form; 2], &'static str>> {
    let zone = match options.time_zone.as_str() {
        "UTC" => TimeZone::UTC,
        name => TimeZone::get(name).map_err(|source| Error::TimeZone { name: name.into(), source })?,
    };
    let path = directory.join("config.json");
    if let Some(text) = read(&path)? {
        let model: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| malformed(&path, error))?;
        let kind = model.get("model_type").and_then(serde_json::Value::as_str).unwrap_or_default();
        if options.rules.models_without_template.contains(&kind) {
            return Ok(Err("the engine makes this model's prompts without a template"));
        }
    }
    let default = config.template("default");
    let (plain, tooled) = match options.chat_template.as_deref() {
        Some(template) => (Some(template), Some(template)),
        None if directory.join("tekken.json").exists() => {
            return Ok(Err("the engine makes this model's prompts without a template"));
        }
        None => (config.processor_template.as_deref().or(default), config.template("tool_use").or(default)),
    };
    let (Some(plain), Some(tooled)) = (plain, tooled) else { return Ok(Err("no chat template")) };
    let form = |source: &str| -> Result<Form> {
        Ok(Form {
            template: Template::new(source, zone.clone(), options.limits)?,
            format: options.content_format.unwrap_or_else(|| detect(source)),
            knows_developer: knows_developer(source),
        })
    };
    Ok(Ok([form(plain)?, form(tooled)?]))
}
