//! Tools and tool calls, as the engine hands them to a template: in its own order, without what it does not know.

use minijinja::Value;

use super::EngineRules;
use crate::json::{Arena, Json, parse_once};
use crate::template::object::{dict, list, value};

type Result<T> = std::result::Result<T, &'static str>;

/// The tools of a request; none if it has none.
///
/// # Errors
/// The engine would refuse them, or they have fields that are not followed.
pub(crate) fn read_tools(rules: &EngineRules, body: &Json<'_>, arena: &Arena) -> Result<Value> {
    let tools = match body.get("tools", arena) {
        None | Some(Json::Null) => return Ok(Value::from(())),
        Some(Json::List(tools)) => tools,
        Some(_) => return Err("tools is no list"),
    };
    let tools: Result<Vec<Value>> = tools.iter().map(|tool| read_tool(rules, tool, arena)).collect();
    Ok(list(tools?))
}

fn read_tool(rules: &EngineRules, tool: &Json<'_>, arena: &Arena) -> Result<Value> {
    let function = tool.get("function", arena).ok_or("a tool without a function")?;
    let defers =
        |part: &Json<'_>| part.get("defer_loading", arena).is_some_and(|defers| *defers != Json::Null);
    if defers(tool) || defers(function) {
        return Err("a tool that is loaded later");
    }
    let mut fields = Vec::new();
    for &name in rules.function_fields {
        let given = function.get(name, arena);
        fields.push((name, given.map_or(Value::from(()), |given| value(given, arena))));
    }
    for &name in rules.optional_function_fields {
        if let Some(given) = function.get(name, arena).filter(|given| **given != Json::Null) {
            fields.push((name, value(given, arena)));
        }
    }
    let kind = tool.get("type", arena).map_or(Value::from("function"), |kind| value(kind, arena));
    Ok(dict([("type", kind), ("function", dict(fields))]))
}

/// The tool calls of an assistant's message.
///
/// # Errors
/// The engine would refuse them, or reads arguments that we do not.
pub(super) fn read_calls(rules: &EngineRules, calls: &[Json<'_>], arena: &Arena) -> Result<Value> {
    let calls: Result<Vec<Value>> = calls.iter().map(|call| read_call(rules, call, arena)).collect();
    Ok(list(calls?))
}

fn read_call(rules: &EngineRules, call: &Json<'_>, arena: &Arena) -> Result<Value> {
    let function @ Json::Map(_) = call.get("function", arena).ok_or("a tool call without a function")? else {
        return Err("a tool call whose function is no object");
    };
    let [outer, inner] = rules.call_fields;
    let mut fields = Vec::new();
    for &name in inner {
        match function.get(name, arena) {
            given if name == "arguments" => fields.push((name, read_arguments(given, arena)?)),
            Some(given) => fields.push((name, value(given, arena))),
            None => {}
        }
    }
    let function = dict(fields);
    let fields = outer.iter().filter_map(|&name| match name {
        "function" => Some((name, function.clone())),
        _ => call.get(name, arena).map(|given| (name, value(given, arena))),
    });
    Ok(dict(fields.collect::<Vec<_>>()))
}

/// Arguments become an object, whatever they are.
fn read_arguments(given: Option<&Json<'_>>, arena: &Arena) -> Result<Value> {
    let empty = || dict([]);
    match given {
        Some(object @ Json::Map(_)) => Ok(value(object, arena)),
        Some(Json::Text(text)) if !text.get(arena).is_empty() => {
            let text = text.get(arena);
            let object = parse_once(text, |parsed, arena| match parsed {
                Json::Map(_) => value(parsed, arena),
                _ => empty(),
            });
            match object {
                Ok(object) => Ok(object),
                // Python reads more than we do.
                Err(_) if ["NaN", "Infinity", "\\ud", "\\uD"].iter().any(|word| text.contains(word)) => {
                    Err("arguments of a tool call that only Python reads")
                }
                Err(_) => Ok(empty()),
            }
        }
        _ => Ok(empty()),
    }
}
