//! Messages, as the engine hands them to a template.

use std::borrow::Cow;

use minijinja::Value;

use super::EngineRules;
use super::tools::read_calls;
use crate::json::{Arena, Json};
use crate::template::format::ContentFormat;
use crate::template::object::{dict, list, value};

type Result<T> = std::result::Result<T, &'static str>;

/// Stands in a rendered prompt where its first image, sound or video begins. Noncharacters, which no text has.
pub(crate) const MARK: &str = "\u{fdd0}item\u{fdd1}";

/// A conversation, ready for a template.
#[derive(Debug)]
pub(crate) struct Chat<'s> {
    messages: Vec<Message<'s>>,
    /// Whether [`MARK`] is in it.
    pub(crate) has_items: bool,
}

#[derive(Debug)]
struct Message<'s> {
    role: &'s str,
    content: Content<'s>,
    fields: Vec<(&'static str, Value)>,
}

#[derive(Debug)]
enum Content<'s> {
    Text(Cow<'s, str>),
    Parts(Vec<Part<'s>>),
}

#[derive(Debug, Clone)]
enum Part<'s> {
    Text(Cow<'s, str>),
    /// An image, a sound or a video.
    Item(&'static str),
    /// The name of a tool.
    Reference(&'s str),
}

impl Part<'_> {
    fn value(&self) -> Value {
        match self {
            Self::Text(text) => dict([("type", Value::from("text")), ("text", Value::from(&**text))]),
            Self::Item(kind) => dict([("type", Value::from(*kind))]),
            Self::Reference(name) => {
                dict([("type", Value::from("tool_reference")), ("name", Value::from(*name))])
            }
        }
    }
}

/// Messages of one chat. A template that adds to a list needs the square of their number, which no limit of the engine counts.
const MAX_MESSAGES: usize = 4096;

/// Reads the messages of `body` for a template that takes content as `format` says and may know developers.
///
/// # Errors
/// The engine would refuse them, or they hold what is not followed.
pub(crate) fn read_messages<'s, 'a: 's>(
    rules: &EngineRules,
    body: &'s Json<'a>,
    arena: &'s Arena,
    format: ContentFormat,
    knows_developer: bool,
) -> Result<Chat<'s>> {
    let Some(Json::List(messages)) = body.get("messages", arena) else { return Err("no messages") };
    if messages.len() > MAX_MESSAGES {
        return Err("too many messages");
    }
    let mut chat = Chat { messages: Vec::with_capacity(messages.len()), has_items: false };
    for message in messages {
        let message = chat.read(rules, message, arena, format)?;
        chat.messages.push(message);
    }
    if !knows_developer && chat.messages.iter().any(|message| message.role == "developer") {
        chat.fold_developers(rules);
    }
    Ok(chat)
}

impl<'s> Chat<'s> {
    fn read<'a: 's>(
        &mut self,
        rules: &EngineRules,
        message: &'s Json<'a>,
        arena: &'s Arena,
        format: ContentFormat,
    ) -> Result<Message<'s>> {
        let field = |name: &str| message.get(name, arena).filter(|value| **value != Json::Null);
        let role = field("role").and_then(|role| role.as_text(arena)).ok_or("a message without a role")?;
        let mut parts = Vec::new();
        let mut one = None;
        match field("content") {
            None => {}
            Some(Json::Text(text)) => one = Some(text.get(arena)),
            Some(Json::List(items)) => {
                for item in items {
                    parts.extend(read_part(item, arena)?);
                }
            }
            Some(_) => return Err("content that is no text and no list"),
        }
        parts.extend(one.map(|text| Part::Text(text.into())));
        if role == "system" {
            drop_line(rules, &mut parts);
        }
        let content = self.content(rules, parts, format);
        let content = match (role, content) {
            // The result of a tool is one text, unless it names tools.
            ("tool", Content::Parts(parts)) if parts.iter().all(|part| matches!(part, Part::Text(_))) => {
                Content::Text(join(rules, &parts))
            }
            (_, content) => content,
        };
        let mut fields = Vec::new();
        match role {
            "assistant" => {
                match field("tool_calls") {
                    Some(Json::List(calls)) if calls.is_empty() => {}
                    Some(Json::List(calls)) => fields.push(("tool_calls", read_calls(rules, calls, arena)?)),
                    None => {}
                    Some(_) => return Err("tool_calls is no list"),
                }
                if let Some(reasoning) = field("reasoning").or_else(|| field("reasoning_content")) {
                    fields.push(("reasoning", value(reasoning, arena)));
                    fields.push(("reasoning_content", value(reasoning, arena)));
                }
            }
            "tool" => {
                fields.extend(message.get("tool_call_id", arena).map(|id| ("tool_call_id", value(id, arena))))
            }
            _ => {}
        }
        for name in ["name", "task"] {
            let text = field(name).and_then(|text| text.as_text(arena));
            fields.extend(text.map(|text| (name, Value::from(text))));
        }
        if role == "developer" {
            fields.push(("tools", field("tools").map_or(Value::from(()), |tools| value(tools, arena))));
        }
        Ok(Message { role, content, fields })
    }

    /// The content as the template takes it. The first item of the chat is marked: where text is wanted, the engine
    /// puts what stands for items in front of it.
    fn content(
        &mut self,
        rules: &EngineRules,
        mut parts: Vec<Part<'s>>,
        format: ContentFormat,
    ) -> Content<'s> {
        let item = parts.iter().position(|part| matches!(part, Part::Item(_)));
        let is_first_item = item.is_some() && !self.has_items;
        self.has_items |= item.is_some();
        match format {
            ContentFormat::Parts => {
                if let (Some(at), true) = (item, is_first_item) {
                    parts.insert(at, Part::Text(MARK.into()));
                }
                Content::Parts(parts)
            }
            ContentFormat::Text if is_first_item => Content::Text(Cow::Borrowed(MARK)),
            ContentFormat::Text => {
                parts.retain(|part| match part {
                    Part::Text(text) => !text.is_empty(),
                    Part::Reference(name) => !name.is_empty(),
                    Part::Item(_) => false,
                });
                Content::Text(join(rules, &parts))
            }
        }
    }

    /// Developers become the system, and all that the system says comes first, in one message.
    fn fold_developers(&mut self, rules: &EngineRules) {
        for message in self.messages.iter_mut().filter(|message| message.role == "developer") {
            message.role = "system";
            message.fields.retain(|(name, _)| *name != "tools");
        }
        let is_system = |message: &Message<'_>| message.role == "system";
        if !self.messages.iter().skip(1).any(is_system) {
            return;
        }
        let (system, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.messages).into_iter().partition(is_system);
        let texts = system.into_iter().map(|message| match message.content {
            Content::Text(text) => text,
            Content::Parts(parts) => {
                let texts = parts.into_iter().filter(|part| matches!(part, Part::Text(_)));
                join(rules, &texts.collect::<Vec<_>>())
            }
        });
        let texts: Vec<_> = texts.filter(|text| !text.is_empty()).collect();
        let content = Content::Text(texts.join(rules.system_separator).into());
        self.messages.push(Message { role: "system", content, fields: Vec::new() });
        self.messages.extend(others);
    }

    /// Appends `tag` to the last message's text, as one that is to be gone on with.
    ///
    /// # Errors
    /// It has no text.
    pub(crate) fn tag_last(&mut self, tag: &'static str) -> Result<()> {
        let no_text = "a last message without text is to be continued";
        match &mut self.messages.last_mut().ok_or(no_text)?.content {
            Content::Text(text) => text.to_mut().push_str(tag),
            Content::Parts(parts) => {
                let texts = parts.iter_mut().rev().find_map(|part| match part {
                    Part::Text(text) => Some(text),
                    _ => None,
                });
                texts.ok_or(no_text)?.to_mut().push_str(tag);
            }
        }
        Ok(())
    }

    /// The messages as a template sees them.
    pub(crate) fn into_value(self) -> Value {
        list(self.messages.into_iter().map(|message| {
            let content = match message.content {
                Content::Text(text) => Value::from(&*text),
                Content::Parts(parts) => list(parts.iter().map(Part::value)),
            };
            let mut entries = vec![("role", Value::from(message.role)), ("content", content)];
            entries.extend(message.fields);
            dict(entries)
        }))
    }
}

fn join<'s>(rules: &EngineRules, parts: &[Part<'s>]) -> Cow<'s, str> {
    let text = |part: &Part<'s>| match part {
        Part::Text(text) => text.clone(),
        Part::Reference(name) => Cow::Borrowed(*name),
        Part::Item(_) => Cow::Borrowed(""),
    };
    match parts {
        [] => Cow::Borrowed(""),
        [part] => text(part),
        parts => parts.iter().map(text).collect::<Vec<_>>().join(rules.part_separator).into(),
    }
}

/// A part of a message's content; `None` for a text that is null.
fn read_part<'s, 'a: 's>(part: &'s Json<'a>, arena: &'s Arena) -> Result<Option<Part<'s>>> {
    if let Some(text) = part.as_text(arena) {
        return Ok(Some(Part::Text(text.into())));
    }
    let field = |name: &str| part.get(name, arena).filter(|value| **value != Json::Null);
    let text = |name: &str| match field(name) {
        None => Ok(None),
        Some(value) => value.as_text(arena).map(Some).ok_or("a part whose text is none"),
    };
    let kind = match field("type") {
        Some(kind) => kind.as_text(arena).ok_or("a part whose type is no text")?,
        None => {
            const ITEMS: [&str; 6] =
                ["image_url", "image_embeds", "audio_url", "audio_embeds", "input_audio", "video_url"];
            ITEMS.into_iter().find(|name| field(name).is_some()).ok_or("a part without a type")?
        }
    };
    Ok(match kind {
        "text" | "input_text" | "output_text" => text("text")?.map(|text| Part::Text(text.into())),
        "refusal" | "thinking" => text(kind)?.map(|text| Part::Text(text.into())),
        "image_url" | "input_image" | "image_pil" | "image_embeds" => Some(Part::Item("image")),
        "audio_url" | "input_audio" | "audio_embeds" => Some(Part::Item("audio")),
        "video_url" | "video_embeds" => Some(Part::Item("video")),
        "tool_reference" => text("name")?.map(Part::Reference),
        "prompt_embeds" => return Err("prompt_embeds"),
        _ => return Err("a part of an unknown type"),
    })
}

/// Drops the first line of each system text that begins with the line to drop, and a text that has no other.
fn drop_line(rules: &EngineRules, parts: &mut Vec<Part<'_>>) {
    parts.retain_mut(|part| match part {
        Part::Text(text) if text.starts_with(rules.dropped_system_line) => {
            let rest = text.split_once('\n').map_or("", |(_, rest)| rest).to_owned();
            *text = rest.into();
            !text.is_empty()
        }
        _ => true,
    });
}
