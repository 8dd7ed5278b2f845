//! What `tokenizer_config.json` and the files beside it say: names of special tokens, chat templates.

use std::path::Path;

use serde_json::{Map, Value};

use super::{malformed, read};
use crate::error::Result;

/// What stands beside the vocabulary.
#[derive(Debug, Default)]
pub(crate) struct Config {
    /// `bos_token` and its like, as templates name them.
    pub(crate) special_tokens: Vec<(String, SpecialToken)>,
    /// Templates by name; the only one is `default`.
    pub(crate) templates: Vec<(String, String)>,
    /// The template of a processor (models with images), which counts where no tools are given.
    pub(crate) processor_template: Option<String>,
    /// Tokens by id, where the vocabulary has no names for them.
    pub(crate) added_tokens: Vec<(u32, String)>,
    /// Whether a text gets `bos_token` in front and `eos_token` behind, where the file says so.
    pub(crate) adds_bos: Option<bool>,
    pub(crate) adds_eos: Option<bool>,
}

/// One or many tokens under a name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SpecialToken {
    One(String),
    Many(Vec<String>),
}

impl Config {
    /// Reads what is in `directory`; what is not there is left empty.
    pub(crate) fn load(directory: &Path) -> Result<Self> {
        let mut config = Self::default();
        let mut names = Map::new();
        for name in ["special_tokens_map.json", "tokenizer_config.json"] {
            let path = directory.join(name);
            let Some(text) = read(&path)? else { continue };
            let fields: Map<String, Value> =
                serde_json::from_str(&text).map_err(|error| malformed(&path, error))?;
            names.extend(fields);
        }
        config.read_tokens(&names);
        config.read_templates(directory, &names)?;
        Ok(config)
    }

    fn read_tokens(&mut self, fields: &Map<String, Value>) {
        let named = fields
            .iter()
            .filter(|(name, _)| name.ends_with("_token") || *name == "additional_special_tokens");
        let extra = ["extra_special_tokens", "model_specific_special_tokens"];
        let extra = extra.iter().filter_map(|name| fields.get(*name)?.as_object()).flatten();
        for (name, value) in named.chain(extra) {
            let token = match value {
                Value::Array(items) => Some(SpecialToken::Many(items.iter().filter_map(content).collect())),
                value => content(value).map(SpecialToken::One),
            };
            self.special_tokens.extend(token.map(|token| (name.clone(), token)));
        }
        self.adds_bos = fields.get("add_bos_token").and_then(Value::as_bool);
        self.adds_eos = fields.get("add_eos_token").and_then(Value::as_bool);
        for (id, token) in fields.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten()
        {
            if let (Ok(id), Some(content)) = (id.parse(), content(token)) {
                self.added_tokens.push((id, content));
            }
        }
    }

    fn read_templates(&mut self, directory: &Path, fields: &Map<String, Value>) -> Result<()> {
        match fields.get("chat_template") {
            Some(Value::String(template)) => self.set_template("default", template.clone()),
            Some(Value::Array(templates)) => {
                for template in templates {
                    let field = |name: &str| template.get(name).and_then(Value::as_str);
                    if let (Some(name), Some(template)) = (field("name"), field("template")) {
                        self.set_template(name, template.to_owned());
                    }
                }
            }
            _ => {}
        }
        let own = read(&directory.join("chat_template.jinja"))?;
        let path = directory.join("chat_template.json");
        if let (None, Some(text)) = (&own, read(&path)?) {
            let fields: Value = serde_json::from_str(&text).map_err(|error| malformed(&path, error))?;
            self.processor_template = fields.get("chat_template").and_then(Value::as_str).map(str::to_owned);
        }
        if let Some(template) = own {
            self.set_template("default", template);
        }
        if let Ok(files) = std::fs::read_dir(directory.join("additional_chat_templates")) {
            for path in files.filter_map(|file| Some(file.ok()?.path())) {
                let name = path
                    .file_name()
                    .and_then(|name| name.to_str())
                    .and_then(|name| name.strip_suffix(".jinja"));
                if let (Some(name), Some(template)) = (name, read(&path)?) {
                    self.set_template(name, template);
                }
            }
        }
        Ok(())
    }

    fn set_template(&mut self, name: &str, template: String) {
        self.templates.retain(|(other, _)| other != name);
        self.templates.push((name.to_owned(), template));
    }

    /// The template of this name.
    pub(crate) fn template(&self, name: &str) -> Option<&str> {
        self.templates.iter().find(|(other, _)| other == name).map(|(_, template)| template.as_str())
    }

    /// The token under this name, if it is one.
    #[cfg(test)]
    pub(crate) fn special_token(&self, name: &str) -> Option<&str> {
        self.special_tokens.iter().find_map(|(other, token)| match token {
            SpecialToken::One(token) if other == name => Some(token.as_str()),
            _ => None,
        })
    }
}

/// A token's text: a string, or an object with `content`.
fn content(token: &Value) -> Option<String> {
    token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_owned)
}
