//! The text that a prompt's tokens spell.
//!
//! Most tokenizers spell the prompt itself. Some compose characters first, take U+2581 for a space, put a space in
//! front, or swallow white space around a special token; they do so to the pieces between special tokens only. Where
//! nothing of it applies, the text is borrowed: an ASCII prompt of most tokenizers costs one scan, or none.

use std::borrow::Cow;

use aho_corasick::{AhoCorasick, MatchKind};
use memchr::memmem;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// U+2581, which sentencepiece writes for a space.
const BLOCK: &str = "\u{2581}";

/// A Unicode normal form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

/// Where a space is put in front.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Space {
    #[default]
    Never,
    /// Of each piece.
    Each,
    /// Of each piece that begins with no space.
    EachWithout,
    /// Of a piece that begins the prompt, with no space.
    FirstWithout,
}

/// A token with a text of its own, which is found before anything else happens to a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AddedToken {
    pub(super) content: String,
    /// White space before it is swallowed.
    pub(super) is_left_open: bool,
    /// White space behind it is swallowed.
    pub(super) is_right_open: bool,
}

/// What a tokenizer does to a text before it splits it into tokens.
///
/// Immutable; sharing it between threads is free.
#[derive(Debug, Clone, Default)]
pub struct Canonical {
    pub(super) form: Option<Form>,
    pub(super) space: Space,
    /// U+2581 becomes a space.
    pub(super) has_blocks: bool,
    added: Vec<AddedToken>,
    /// Finds the added tokens; `None` if where they stand changes nothing.
    finder: Option<AhoCorasick>,
    is_any_open: bool,
}

impl Canonical {
    /// `None` if there are more tokens than can be searched for.
    pub(super) fn new(
        form: Option<Form>,
        space: Space,
        has_blocks: bool,
        added: Vec<AddedToken>,
    ) -> Option<Self> {
        let is_any_open = added.iter().any(|token| token.is_left_open || token.is_right_open);
        let needs_pieces = form.is_some() || space != Space::Never || is_any_open;
        let finder = match needs_pieces && !added.is_empty() {
            true => {
                let contents = added.iter().map(|token| &token.content);
                Some(AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(contents).ok()?)
            }
            false => None,
        };
        Some(Self { form, space, has_blocks, added, finder, is_any_open })
    }

    /// The text that the tokens of `text` spell.
    ///
    /// Cost: nothing without a rule; a scan for bytes beyond ASCII with a normal form; a search for U+2581; else a
    /// search for the special tokens. A copy only where something changes.
    pub fn apply<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let text = match self.is_spelled(text) {
            true => Cow::Borrowed(text),
            false => Cow::Owned(self.apply_to_pieces(text)),
        };
        match self.has_blocks && memmem::find(text.as_bytes(), BLOCK.as_bytes()).is_some() {
            true => Cow::Owned(text.replace(BLOCK, " ")),
            false => text,
        }
    }

    /// Whether all rules about pieces are known to change nothing, without looking for pieces.
    fn is_spelled(&self, text: &str) -> bool {
        if self.space != Space::Never || self.is_any_open {
            return text.is_empty();
        }
        match self.form {
            None => true,
            Some(_) if text.is_ascii() => true,
            // What is composed is composed in all its parts.
            Some(Form::Nfc) => is_composed(text),
            Some(_) => false,
        }
    }

    /// Applies the rules to each piece, whatever they change.
    fn apply_to_pieces(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + 16);
        // Where the last added token ended, with the white space that it swallowed.
        let mut at = 0;
        for found in self.finder.iter().flat_map(|finder| finder.find_iter(text)) {
            let token = &self.added[found.pattern().as_usize()];
            let (mut start, mut end) = (found.start(), found.end());
            if token.is_left_open {
                start = text[..start].trim_end().len().max(at);
            }
            if token.is_right_open {
                end += text[end..].len() - text[end..].trim_start().len();
            }
            if at < start {
                self.piece(&text[at..start], at == 0, &mut out);
            }
            out.push_str(&token.content);
            at = end;
        }
        if at < text.len() {
            self.piece(&text[at..], at == 0, &mut out);
        }
        out
    }

    fn piece(&self, piece: &str, is_first: bool, out: &mut String) {
        let piece = match self.form {
            None => Cow::Borrowed(piece),
            Some(_) if piece.is_ascii() => Cow::Borrowed(piece),
            Some(Form::Nfc) => piece.nfc().collect(),
            Some(Form::Nfd) => piece.nfd().collect(),
            Some(Form::Nfkc) => piece.nfkc().collect(),
            Some(Form::Nfkd) => piece.nfkd().collect(),
        };
        let has_space = piece.starts_with([' ', '\u{2581}']);
        let gets_space = match self.space {
            Space::Never => false,
            Space::Each => true,
            Space::EachWithout => !has_space,
            Space::FirstWithout => is_first && !has_space,
        };
        if gets_space {
            out.push(' ');
        }
        out.push_str(&piece);
    }
}

/// Characters that stand in NFC as they are and combine with none before them: letters below U+0300, kana, CJK,
/// Hangul, full-width forms and emoji, which is nearly all text.
fn is_plain(character: char) -> bool {
    matches!(
        u32::from(character),
        ..0x300
            | 0x400..=0x482
            | 0x2002..=0x205e
            | 0x3000..=0x3029
            | 0x3041..=0x3096
            | 0x30a1..=0x30fe
            | 0x3400..=0x4dbf
            | 0x4e00..=0x9fff
            | 0xac00..=0xd7a3
            | 0xfe0f
            | 0xff01..=0xff9d
            | 0x1f300..=0x1faff
    )
}

/// Whether `text` is in NFC; `false` where only a full check could tell.
fn is_composed(text: &str) -> bool {
    text.chars().all(is_plain) || is_nfc_quick(text.chars()) == IsNormalized::Yes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use unicode_normalization::char::canonical_combining_class;
    use unicode_normalization::is_nfc;

    use super::*;

    fn token(content: &str, is_left_open: bool, is_right_open: bool) -> AddedToken {
        AddedToken { content: content.into(), is_left_open, is_right_open }
    }

    fn rule(form: Option<Form>, space: Space, has_blocks: bool) -> Canonical {
        let added =
            vec![token("<a>", false, false), token("<a><b>", false, false), token("é<", false, false)];
        Canonical::new(form, space, has_blocks, added).unwrap()
    }

    #[test]
    fn plain_characters_are_composed_and_stay_apart() {
        for character in ('\0'..=char::MAX).filter(|&character| is_plain(character)) {
            assert_eq!(canonical_combining_class(character), 0, "{character:?}");
            assert!(is_nfc(&character.to_string()), "{character:?}");
            // Not the second half of a pair that composes.
            assert_eq!(is_nfc_quick(std::iter::once(character)), IsNormalized::Yes, "{character:?}");
        }
    }

    #[test]
    fn the_vectors_come_out() {
        #[derive(serde::Deserialize)]
        struct Case {
            rule: String,
            specials: Vec<String>,
            text: String,
            bytes_b64: String,
        }
        let cases: Vec<Case> =
            serde_json::from_str(include_str!("../../tests/data/canonical_text_vectors.json")).unwrap();
        assert_eq!(cases.len(), 59);
        for case in cases {
            let is_open = case.rule.starts_with("white space");
            let added = case
                .specials
                .iter()
                .map(|name| token(name, is_open && name == "<mask>", is_open && name == "<|user|>"));
            let form = case.rule.starts_with("NFC").then_some(Form::Nfc);
            let space = if case.rule.starts_with("a space") { Space::Each } else { Space::Never };
            let canonical =
                Canonical::new(form, space, case.rule.contains("U+2581"), added.collect()).unwrap();
            let wanted =
                base64::Engine::decode(&base64::engine::general_purpose::STANDARD, &case.bytes_b64).unwrap();
            assert_eq!(canonical.apply(&case.text).as_bytes(), wanted, "{}: {:?}", case.rule, case.text);
        }
    }

    #[test]
    fn what_does_not_change_is_borrowed() {
        let cases = [
            (None, "any ▁ text é", false),
            (Some(Form::Nfc), "ascii <a> only", false),
            (Some(Form::Nfc), "日本語 한국어 é 👩\u{200d}👧 кириллица", false),
            (Some(Form::Nfkc), "ascii", false),
            (None, "no block", true),
        ];
        for (form, text, has_blocks) in cases {
            assert!(matches!(rule(form, Space::Never, has_blocks).apply(text), Cow::Borrowed(_)), "{text}");
        }
    }

    fn any_text() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            "[a-z ]{0,6}",
            "\\PC{0,4}",
            Just("e\u{301}".to_owned()),
            Just("ﬁ①が".to_owned()),
            Just("\u{2581} ".to_owned()),
            Just("<a>".to_owned()),
            Just("<a><b>".to_owned()),
            Just("é<".to_owned()),
        ];
        proptest::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
    }

    fn any_rule() -> impl Strategy<Value = Canonical> {
        let form = prop_oneof![
            Just(None),
            Just(Some(Form::Nfc)),
            Just(Some(Form::Nfd)),
            Just(Some(Form::Nfkc)),
            Just(Some(Form::Nfkd)),
        ];
        let spaces = [Space::Never, Space::Each, Space::EachWithout, Space::FirstWithout];
        (form, proptest::sample::select(spaces.to_vec()), any::<bool>())
            .prop_map(|(form, space, has_blocks)| rule(form, space, has_blocks))
    }

    proptest! {
        #[test]
        fn short_cuts_change_nothing(canonical in any_rule(), text in any_text()) {
            let mut slow = canonical.apply_to_pieces(&text);
            if canonical.has_blocks {
                slow = slow.replace(BLOCK, " ");
            }
            prop_assert_eq!(canonical.apply(&text).into_owned(), slow);
        }
    }
}
