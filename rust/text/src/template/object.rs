//! A request's lists and maps as a template sees them: built once, in the request's order, printed as Python does.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{DynObject, Enumerator, Object, ObjectExt, ObjectRepr};

use super::source::METHOD;
use crate::json::{Arena, Json};
use crate::python::{BigInt, represent};

/// From so many keys on a map is searched through a table.
const MANY_KEYS: usize = 16;

/// A `dict` with keys of text.
#[derive(Debug, Default)]
pub(crate) struct Dict {
    entries: Vec<(Value, Value)>,
    places: HashMap<Box<str>, usize>,
}

impl Dict {
    /// A map of these entries; no key comes twice.
    pub(crate) fn new(entries: Vec<(Value, Value)>) -> Self {
        let mut places = HashMap::new();
        if entries.len() >= MANY_KEYS {
            let keys =
                entries.iter().enumerate().filter_map(|(at, (key, _))| Some((key.as_str()?.into(), at)));
            places = keys.collect();
        }
        Self { entries, places }
    }

    fn find(&self, key: &str) -> Option<&Value> {
        if self.entries.len() >= MANY_KEYS {
            return self.places.get(key).map(|&place| &self.entries[place].1);
        }
        self.entries.iter().find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value)
    }
}

impl Object for Dict {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        match key.starts_with(METHOD) {
            true => Some(Value::from_object(Method)),
            false => self.find(key).cloned(),
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_enumerator(|this| Box::new(this.entries.iter().map(|(key, _)| key.clone())))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.entries.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        render(DynObject::new(self.clone()), f)
    }
}

/// A method that is not called: it is something, and has no text.
#[derive(Debug)]
struct Method;

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

/// A `list`.
#[derive(Debug)]
pub(crate) struct List(pub(crate) Vec<Value>);

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        render(DynObject::new(self.clone()), f)
    }
}

/// What `keys`, `values` and `items` of a `dict` give: it can be gone through, and is no list.
#[derive(Debug)]
pub(crate) struct View(pub(crate) Vec<Value>);

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.clone())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.0.len())
    }
}

fn render(object: DynObject, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut text = String::new();
    represent(&Value::from_dyn_object(object), &mut text).map_err(|_| fmt::Error)?;
    f.write_str(&text)
}

/// What `json` is to a template.
pub(crate) fn value(json: &Json<'_>, arena: &Arena) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Int(value) => Value::from(*value),
        Json::Big(digits) => match digits.parse::<i128>() {
            Ok(value) => Value::from(value),
            Err(_) => Value::from_object(BigInt((*digits).into())),
        },
        Json::Float(value) => Value::from(*value),
        Json::Text(text) => Value::from(text.get(arena)),
        Json::List(items) => list(items.iter().map(|item| value(item, arena))),
        Json::Map(entries) => dict(entries.iter().map(|(key, item)| (key.get(arena), value(item, arena)))),
    }
}

/// A `list` of these items.
pub(crate) fn list(items: impl IntoIterator<Item = Value>) -> Value {
    Value::from_object(List(items.into_iter().collect()))
}

/// A `dict` of these entries; no key comes twice.
pub(crate) fn dict<'k>(entries: impl IntoIterator<Item = (&'k str, Value)>) -> Value {
    Value::from_object(Dict::new(entries.into_iter().map(|(key, value)| (Value::from(key), value)).collect()))
}
