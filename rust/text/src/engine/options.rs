//! Options of a request that change its tokens.

use minijinja::Value;

use super::EngineRules;
use crate::json::{Arena, Json};
use crate::template::object::value;

/// A field of a request's body, or of an object in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    name: &'static str,
    inner: Option<&'static str>,
}

impl Field {
    /// A field that is there and not null.
    pub const fn set(name: &'static str) -> Self {
        Self { name, inner: None }
    }

    /// A field within another.
    pub const fn within(name: &'static str, inner: &'static str) -> Self {
        Self { name, inner: Some(inner) }
    }

    fn is_in(self, body: &Json<'_>, arena: &Arena) -> bool {
        let found = body.get(self.name, arena);
        let found = match self.inner {
            Some(inner) => found.and_then(|object| object.get(inner, arena)),
            None => found,
        };
        found.is_some_and(|value| *value != Json::Null)
    }
}

/// The option of `body` that is not followed, if it has one.
pub(crate) fn refusal(rules: &EngineRules, body: &Json<'_>, arena: &Arena) -> Option<&'static str> {
    let field = rules.refused.iter().find(|field| field.is_in(body, arena))?;
    Some(field.inner.unwrap_or(field.name))
}

/// The variables that `body` sets for its template, in the order of their weight: a name that comes twice counts as
/// it came first.
///
/// # Errors
/// It sets one that is not a template's.
pub(crate) fn template_kwargs(
    rules: &EngineRules,
    body: &Json<'_>,
    arena: &Arena,
    context: &mut Vec<(Value, Value)>,
) -> Result<(), &'static str> {
    let own = match body.get("chat_template_kwargs", arena) {
        None | Some(Json::Null) => None,
        Some(Json::Map(entries)) => Some(entries),
        Some(_) => return Err("chat_template_kwargs is no object"),
    };
    let own: &[_] = own.map_or(&[], Vec::as_slice);
    let is_set = |value: &Json<'_>| match value {
        Json::Null => false,
        Json::Text(text) => !rules.unset_words.contains(&text.get(arena)),
        _ => true,
    };
    for name in ["documents", "reasoning_effort"] {
        if let Some(given) = body.get(name, arena).filter(|given| is_set(given)) {
            context.push((Value::from(name), value(given, arena)));
        }
    }
    let is_own = |name: &str| own.iter().any(|(other, _)| other.get(arena) == name);
    let effort =
        body.get("reasoning_effort", arena).filter(|effort| is_set(effort) && !is_own("enable_thinking"));
    if let Some(effort) = effort {
        let thinks = effort.as_text(arena) != Some("none");
        context.push((Value::from("enable_thinking"), Value::from(thinks)));
    }
    for (name, given) in own {
        let name = name.get(arena);
        if rules.refused_kwargs.contains(&name) {
            return Err("chat_template_kwargs sets what is not the template's");
        }
        if is_set(given) {
            context.push((Value::from(name), value(given, arena)));
        }
    }
    Ok(())
}
