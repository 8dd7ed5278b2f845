//! What the engine reads off a template's source: whether it takes content in parts, and which roles it knows.
//!
//! vLLM walks Jinja's syntax tree: a template that loops over the content of a message gets parts. The same shapes are
//! found here in the tags of the source.

/// How a message's content is handed to a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentFormat {
    /// As one text.
    Text,
    /// As a list of parts.
    Parts,
}

/// Whether `source` names the role `developer`.
pub(crate) fn knows_developer(source: &str) -> bool {
    source.contains("\"developer\"") || source.contains("'developer'")
}

/// How `source` takes content. Source: `_detect_content_format` in vLLM's renderer for Hugging Face templates.
pub(crate) fn detect(source: &str) -> ContentFormat {
    let (mut sets, mut loops) = (Vec::new(), Vec::new());
    for tokens in statements(source) {
        match tokens.split_first() {
            Some((Token::Name("set"), [Token::Name(target), Token::Mark('='), value @ ..])) => {
                sets.extend(access(value).map(|access| (*target, access)));
            }
            Some((Token::Name("for"), [Token::Name(target), Token::Name("in"), rest @ ..])) => {
                loops.extend(access(iterated(rest)).map(|access| (*target, access)));
            }
            _ => {}
        }
    }
    let mut conversations = vec!["messages"];
    let mut at = 0;
    while let Some(&name) = conversations.get(at) {
        for &(target, access) in &sets {
            if access == (name, None) && !conversations.contains(&target) {
                conversations.push(target);
            }
        }
        at += 1;
    }
    let messages: Vec<&str> = loops
        .iter()
        .filter(|(_, (name, key))| key.is_none() && conversations.contains(name))
        .map(|&(target, _)| target)
        .collect();
    let takes_parts = loops.iter().any(|&(_, (name, key))| match key {
        Some(key) => key == "content" && messages.contains(&name),
        None => name == "content",
    });
    if takes_parts { ContentFormat::Parts } else { ContentFormat::Text }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Token<'s> {
    Name(&'s str),
    Text(&'s str),
    Mark(char),
}

/// The tokens of each `{% ... %}`.
fn statements(source: &str) -> Vec<Vec<Token<'_>>> {
    let mut statements = Vec::new();
    let mut rest = source;
    while let Some(start) =
        rest.find("{%").map(|at| (at, false)).into_iter().chain(rest.find("{#").map(|at| (at, true))).min()
    {
        let (at, is_comment) = start;
        rest = &rest[at + 2..];
        if is_comment {
            rest = rest.find("#}").map_or("", |end| &rest[end + 2..]);
            continue;
        }
        let (tokens, after) = tokens(rest);
        statements.push(tokens);
        rest = after;
    }
    statements
}

/// The tokens up to `%}`, and what follows it.
fn tokens(mut rest: &str) -> (Vec<Token<'_>>, &str) {
    let mut tokens = Vec::new();
    rest = rest.trim_start_matches(['-', '+']);
    loop {
        rest = rest.trim_start();
        let Some(first) = rest.chars().next() else { return (tokens, "") };
        if let Some(after) = rest.strip_prefix("%}").or_else(|| rest.strip_prefix("-%}")) {
            return (tokens, after);
        }
        let length = match first {
            '\'' | '"' => {
                let mut is_escaped = false;
                let end = rest.char_indices().skip(1).find(|&(_, letter)| {
                    let is_end = letter == first && !is_escaped;
                    is_escaped = letter == '\\' && !is_escaped;
                    is_end
                });
                let end = end.map_or(rest.len(), |(at, _)| at);
                tokens.push(Token::Text(&rest[1..end]));
                (end + 1).min(rest.len())
            }
            _ if first.is_alphanumeric() || first == '_' => {
                let end = rest
                    .find(|letter: char| !letter.is_alphanumeric() && letter != '_')
                    .unwrap_or(rest.len());
                tokens.push(Token::Name(&rest[..end]));
                end
            }
            _ => {
                tokens.push(Token::Mark(first));
                first.len_utf8()
            }
        };
        rest = &rest[length..];
    }
}

/// What a loop goes over: all before its `if` or `recursive`.
fn iterated<'t, 's>(tokens: &'t [Token<'s>]) -> &'t [Token<'s>] {
    let mut depth = 0;
    let end = tokens.iter().position(|token| {
        match token {
            Token::Mark('(' | '[' | '{') => depth += 1,
            Token::Mark(')' | ']' | '}') => depth -= 1,
            Token::Name("if" | "recursive") => return depth == 0,
            _ => {}
        }
        false
    });
    &tokens[..end.unwrap_or(tokens.len())]
}

/// The variable, and its key if one is taken, that an expression of nothing but slices, filters and tests is about.
fn access<'s>(tokens: &[Token<'s>]) -> Option<(&'s str, Option<&'s str>)> {
    let (mut found, mut rest) = match tokens {
        [Token::Name(name), rest @ ..] => ((*name, None), rest),
        [Token::Mark('('), rest @ ..] => {
            let end = closing(rest)?;
            (access(&rest[..end])?, &rest[end + 1..])
        }
        _ => return None,
    };
    let mut takes_key = true;
    loop {
        rest = match rest {
            [] => return Some(found),
            [Token::Mark('.'), Token::Name(key), rest @ ..] if takes_key && found.1.is_none() => {
                found.1 = Some(*key);
                rest
            }
            [Token::Mark('['), Token::Text(key), Token::Mark(']'), rest @ ..]
                if takes_key && found.1.is_none() =>
            {
                found.1 = Some(*key);
                rest
            }
            [Token::Mark('['), rest @ ..] => {
                let end = closing(rest)?;
                if !rest[..end].contains(&Token::Mark(':')) {
                    return None;
                }
                takes_key = false;
                &rest[end + 1..]
            }
            [Token::Mark('|'), Token::Name(_), rest @ ..] => {
                takes_key = false;
                match rest {
                    [Token::Mark('('), rest @ ..] => &rest[closing(rest)? + 1..],
                    rest => rest,
                }
            }
            [Token::Name("is"), Token::Name(test), rest @ ..] if *test != "not" && rest.is_empty() => rest,
            _ => return None,
        };
    }
}

/// Where the bracket that was opened before `tokens` is closed.
fn closing(tokens: &[Token<'_>]) -> Option<usize> {
    let mut depth = 0usize;
    tokens.iter().position(|token| {
        match token {
            Token::Mark('(' | '[' | '{') => depth += 1,
            Token::Mark(')' | ']' | '}') if depth == 0 => return true,
            Token::Mark(')' | ']' | '}') => depth -= 1,
            _ => {}
        }
        false
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_loop_over_the_content_takes_parts() {
        let cases = [
            ("{% for m in messages %}{{ m.content }}{% endfor %}", false),
            ("{% for m in messages %}{% for c in m['content'] %}{% endfor %}{% endfor %}", true),
            (
                "{%- for m in messages -%}{%- for c in m.content | selectattr('type', 'equalto', 'x') -%}",
                true,
            ),
            ("{% set rest = messages[1:] %}{% for m in rest %}{% for c in m.content if c.text %}", true),
            ("{% for m in messages | reverse %}{% for c in (m.content[1:]) %}", true),
            ("{% for m in messages %}{% set content = m.content %}{% for c in content %}", true),
            ("{% macro show(content) %}{% for item in content %}", true),
            ("{% for m in messages %}{% for c in m.tool_calls %}", false),
            ("{% for m in messages %}{% for c in m.content.parts %}", false),
            ("{% for m in messages %}{% for c in m.content + [] %}", false),
            ("{% for m in others %}{% for c in m.content %}", false),
            ("{# {% for m in messages %}{% for c in m.content %} #}", false),
            ("{% for m in messages %}{% for c in (m.content if m.x else []) %}", false),
        ];
        for (source, takes_parts) in cases {
            assert_eq!(detect(source) == ContentFormat::Parts, takes_parts, "{source}");
        }
        assert!(knows_developer("{% if m.role == 'developer' %}"));
        assert!(!knows_developer("developer"));
    }

    proptest! {
        #[test]
        fn no_source_makes_it_panic(source in "[{}%# formsetinagcx.()\\[\\]:|'\"\\\\é=-]{0,60}") {
            detect(&source);
        }
    }
}
