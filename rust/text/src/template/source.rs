//! A template's source, rewritten where the two engines read it differently.
//!
//! Line ends become `\n`; a string literal is decoded as Python decodes it (`\033`, `\v`, a backslash before a line's
//! end, which joins the lines) and written so that both read the same; `{% generation %}` marks what an assistant
//! said, for training, and is a block without effect.
//!
//! A key of a `dict` that is also the name of one of its methods is not reached by a dot.
//!
//! Texts that are added up to be printed, as in `{{ '<|user|>' + content + '<|end|>' }}`, are printed one by one: each sum
//! would copy the content twice. A sum with a literal text in it has nothing but texts, or is an error; so each of its
//! terms has to be one ([`TEXT`]). What `~` joins is printed likewise, whatever it is.

use minijinja::{Error, ErrorKind};

/// The filter that takes a text only.
pub(super) const TEXT: &str = "__text";

/// Begins the key that stands for a method of a `dict` that is named and not called. Noncharacters, which no key has.
pub(super) const METHOD: &str = "\u{fdd0}";

/// What Python finds before a key: `schema.items` is a method, `schema['items']` a key.
const METHODS: [&str; 11] =
    ["clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"];

/// Rewrites `source`.
///
/// # Errors
/// A string literal has an escape that Python refuses, or names a character (`\N{...}`).
pub(crate) fn rewrite(source: &str) -> Result<String, Error> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(start) = rest.find('{') {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let (tag, is_code) = match rest.as_bytes().get(1) {
            Some(b'#') => (rest.find("#}").map_or(rest.len(), |end| end + 2), false),
            Some(b'{') => (0, true),
            Some(b'%') => match raw_block(rest) {
                Some(end) => (end, false),
                None => (0, true),
            },
            _ => (1, false),
        };
        if is_code {
            rest = code(rest, &mut out)?;
        } else {
            out.push_str(&rest[..tag]);
            rest = &rest[tag..];
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// The word of the statement at the start of `rest`.
fn statement(rest: &str) -> &str {
    let inner = rest.get(2..).unwrap_or_default().trim_start_matches(['-', '+']).trim_start();
    let end = inner.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(inner.len());
    &inner[..end]
}

/// Where the raw block that begins `rest` ends, if one begins there.
fn raw_block(rest: &str) -> Option<usize> {
    if statement(rest) != "raw" {
        return None;
    }
    let mut at = 2;
    while let Some(next) = rest[at..].find("{%") {
        at += next;
        if statement(&rest[at..]) == "endraw" {
            return Some(rest[at..].find("%}").map_or(rest.len(), |end| at + end + 2));
        }
        at += 2;
    }
    Some(rest.len())
}

/// Copies the expression or statement that begins `rest`; returns what follows.
fn code<'s>(rest: &'s str, out: &mut String) -> Result<&'s str, Error> {
    let is_printed = rest.starts_with("{{");
    let close = if is_printed { "}}" } else { "%}" };
    let mut head = &rest[2..];
    out.push_str(&rest[..2]);
    if !is_printed {
        let word = statement(rest);
        let instead = match word {
            "generation" => Some("with"),
            "endgeneration" => Some("endwith"),
            _ => None,
        };
        if let Some(instead) = instead {
            let at = head.find(word).unwrap_or(0);
            out.push_str(&head[..at]);
            out.push_str(instead);
            head = &head[at + word.len()..];
        }
    }
    let start = out.len();
    let mut sum = Sum::default();
    // A brace of a literal map may stand before the end: `{{ {} }}`.
    let mut depth = 0usize;
    let mut characters = head.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        match character {
            '\'' | '"' => {
                let (length, text) = literal(&head[at..])?;
                write_literal(&text, out);
                while characters.next_if(|&(next, _)| next < at + length).is_some() {}
                continue;
            }
            '.' => {
                if let Some(name) = method(&head[at + 1..]) {
                    out.push_str("[\"");
                    out.push_str(METHOD);
                    out.push_str(name);
                    out.push_str("\"]");
                    while characters.next_if(|&(next, _)| next <= at + name.len()).is_some() {}
                    continue;
                }
            }
            '{' | '(' | '[' => depth += 1,
            '}' | '%' if depth == 0 && head[at..].starts_with(close) => {
                if is_printed {
                    sum.print_terms(start, out);
                }
                out.push_str(close);
                return Ok(&head[at + 2..]);
            }
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ if depth == 0 => sum.read(character, out.len()),
            _ => {}
        }
        out.push(character);
    }
    Ok("")
}

/// The method that is named at the start of `rest` and not called.
fn method(rest: &str) -> Option<&'static str> {
    let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(rest.len());
    let name = METHODS.into_iter().find(|name| *name == &rest[..end])?;
    (!rest[end..].trim_start().starts_with('(')).then_some(name)
}

/// Where an expression's terms are added.
#[derive(Debug, Default)]
struct Sum {
    /// Where they stand, and which of `+` and `~` joins them all.
    joints: Vec<usize>,
    joint: Option<char>,
    /// Whether the expression has something that binds no closer.
    is_more: bool,
}

impl Sum {
    /// Reads a character outside of brackets and literals that will be at `at`.
    fn read(&mut self, character: char, at: usize) {
        match character {
            '+' | '~' => {
                self.is_more |= self.joint.replace(character).is_some_and(|joint| joint != character);
                self.joints.push(at);
            }
            // What is left: names, keys and filters. A minus may stand at either end, see below.
            '*' | '/' | '%' | '<' | '>' | '=' | '!' | ',' | ':' => self.is_more = true,
            _ => {}
        }
    }

    /// Prints the terms of the expression that `out` has from `start` on one by one, if it is a sum of texts.
    fn print_terms(&self, start: usize, out: &mut String) {
        const WORDS: [&str; 7] = ["if", "else", "and", "or", "not", "in", "is"];
        let inner = out.split_off(start);
        let (open, inner) = match inner.strip_prefix('-') {
            Some(inner) => ("-", inner),
            None => ("", &*inner),
        };
        let (inner, close) = match inner.strip_suffix('-') {
            Some(inner) => (inner, "-"),
            None => (inner, ""),
        };
        let first = start + open.len();
        let mut terms = Vec::new();
        let mut begin = 0;
        for joint in self.joints.iter().filter_map(|at| at.checked_sub(first)).filter(|at| *at < inner.len())
        {
            terms.push(&inner[begin..joint]);
            begin = joint + 1;
        }
        terms.push(&inner[begin..]);
        let is_plain = |term: &&str| {
            let bare = outside(term);
            let words = || bare.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            !term.trim().is_empty() && !bare.contains('-') && !words().any(|word| WORDS.contains(&word))
        };
        let is_text = |term: &&str| term.trim().starts_with('"') && outside(term).trim().is_empty();
        // Whatever `~` joins is printed; a sum of texts is known by a literal one.
        let is_printed = self.joint == Some('~');
        let is_printed_or_text = is_printed || terms.iter().any(is_text);
        let splits = terms.len() > 1 && !self.is_more && terms.iter().all(is_plain) && is_printed_or_text;
        if !splits {
            out.extend([open, inner, close]);
            return;
        }
        out.push_str(open);
        for (at, term) in terms.iter().enumerate() {
            if at > 0 {
                out.push_str("}}{{");
            }
            out.push_str(term);
            if !is_printed && !is_text(term) {
                out.push('|');
                out.push_str(TEXT);
                out.push(' ');
            }
        }
        out.push_str(close);
    }
}

/// What of a term stands outside of brackets and literals, which are written by [`write_literal`].
fn outside(term: &str) -> String {
    let (mut bare, mut depth) = (String::new(), 0usize);
    let (mut is_quoted, mut is_escaped) = (false, false);
    for letter in term.chars() {
        if is_quoted {
            is_quoted = letter != '"' || is_escaped;
            is_escaped = letter == '\\' && !is_escaped;
            continue;
        }
        match letter {
            '"' => (is_quoted, is_escaped) = (true, false),
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ if depth == 0 => bare.push(letter),
            _ => {}
        }
    }
    bare
}

/// The bytes that the literal at the start of `rest` takes, and its text.
fn literal(rest: &str) -> Result<(usize, String), Error> {
    let bad = |reason| Error::new(ErrorKind::BadEscape, reason);
    let mut characters = rest.char_indices();
    let quote = characters.next().map_or('"', |(_, quote)| quote);
    let mut text = String::new();
    while let Some((at, character)) = characters.next() {
        if character == quote {
            return Ok((at + quote.len_utf8(), text));
        }
        if character != '\\' {
            text.push(character);
            continue;
        }
        let Some((at, escape)) = characters.next() else { break };
        let mut digits = |most: usize, radix: u32| {
            let tail = &rest[at + escape.len_utf8()..];
            let count = tail.chars().take(most).take_while(|digit| digit.is_digit(radix)).count();
            for _ in 0..count {
                characters.next();
            }
            (count, u32::from_str_radix(&tail[..count], radix).unwrap_or(0))
        };
        match escape {
            '\n' => {}
            '\\' | '\'' | '"' => text.push(escape),
            'a' => text.push('\x07'),
            'b' => text.push('\x08'),
            'f' => text.push('\x0c'),
            'n' => text.push('\n'),
            'r' => text.push('\r'),
            't' => text.push('\t'),
            'v' => text.push('\x0b'),
            '0'..='7' => {
                let (count, low) = digits(2, 8);
                let high = escape.to_digit(8).unwrap_or(0) << (3 * count);
                text.extend(char::from_u32(high + low));
            }
            'x' | 'u' | 'U' => {
                let wanted = match escape {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                let (count, code) = digits(wanted, 16);
                let character = char::from_u32(code).filter(|_| count == wanted);
                text.push(character.ok_or_else(|| bad("an escape that stands for no character"))?);
            }
            'N' => return Err(bad("a character by its name")),
            _ => {
                text.push('\\');
                text.push(escape);
            }
        }
    }
    Err(Error::new(ErrorKind::SyntaxError, "unexpected end of string"))
}

/// Appends a literal for `text` that needs no Python to be read.
fn write_literal(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        if matches!(character, '"' | '\\') {
            out.push('\\');
        }
        out.push(character);
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn literals_are_decoded_as_python_does() {
        let cases = [
            ("{{ 'a\\\nb' }}", "{{ \"ab\" }}"),
            (r"{{ '\033[1m\x41\u00e9\v' }}", "{{ \"\x1b[1mAé\x0b\" }}"),
            (r#"{{ ['\d"', "\\'"] }}"#, r#"{{ ["\\d\"", "\\'"] }}"#),
            ("{% if x == '%}' %}{{ {'a': '}}'} }}\\", "{% if x == \"%}\" %}{{ {\"a\": \"}}\"} }}\\"),
            (
                "a 'b\\n' {# '\\n' #}{% raw %}{{ '\\n' }}{% endraw %} { x",
                "a 'b\\n' {# '\\n' #}{% raw %}{{ '\\n' }}{% endraw %} { x",
            ),
            ("{%- generation -%}x{% endgeneration %}", "{%- with -%}x{% endwith %}"),
            ("a\r\nb\rc", "a\nb\nc"),
            ("{{ {'a': {'b': 1}}['a'] }}x", "{{ {\"a\": {\"b\": 1}}[\"a\"] }}x"),
            ("{{- 'a' + m['b+c'] + 'd' -}}", "{{- \"a\" }}{{ m[\"b+c\"] |__text }}{{ \"d\" -}}"),
            ("{{ m.a|trim + 'b' }}", "{{ m.a|trim |__text }}{{ \"b\" }}"),
            ("{{ a + b }}", "{{ a + b }}"),
            ("{{ 'a' + b if c else d }}", "{{ \"a\" + b if c else d }}"),
            ("{{ 'a' + b - 1 }}", "{{ \"a\" + b - 1 }}"),
            ("{{ 'a' + b ~ c }}", "{{ \"a\" + b ~ c }}"),
            ("{{- a ~ 1 ~ b -}}", "{{- a }}{{ 1 }}{{ b -}}"),
            ("{{ a ~ 1 == b }}", "{{ a ~ 1 == b }}"),
            ("{{ f('a' + b) }}", "{{ f(\"a\" + b) }}"),
            ("{{+ 'a' + b }}", "{{+ \"a\" + b }}"),
            (
                "{% if p.items.x or p.itemsx or p.items () %}",
                "{% if p[\"\u{fdd0}items\"].x or p.itemsx or p.items () %}",
            ),
        ];
        for (source, wanted) in cases {
            assert_eq!(rewrite(source).unwrap(), wanted, "{source}");
        }
        assert!(rewrite(r"{{ '\N{BULLET}' }}").is_err());
        assert!(rewrite(r"{{ '\u12' }}").is_err());
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(source in "[{}%#'\"\\\\rawendgtion xuU0-9é\n-]{0,60}") {
            let _ = rewrite(&source);
        }

        #[test]
        fn text_outside_of_tags_is_kept(source in "[^{\r]{0,60}") {
            prop_assert_eq!(rewrite(&source).unwrap(), source);
        }
    }
}
