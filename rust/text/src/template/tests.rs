use super::*;
use crate::json::{Arena, Json, parse_once};
use crate::template::object::value;

fn render(source: &str, context: &Json<'_>, arena: &Arena) -> Result<String, Error> {
    let Json::Map(entries) = context else { panic!("no map") };
    let context =
        entries.iter().map(|(key, item)| (Value::from(key.get(arena)), value(item, arena))).collect();
    let mut out = Vec::new();
    Template::new(source, TimeZone::UTC, Limits::default())?.render(context, 0, &mut out)?;
    Ok(String::from_utf8(out).unwrap())
}

/// Each template of the vectors: equal to Python's text, or an error where Python has one. Templates that we refuse
/// although Python renders them are listed.
#[test]
fn renders_what_python_renders() {
    const REFUSED: [&str; 1] = ["percent format"];
    let vectors = include_str!("../../tests/data/template_vectors.json");
    let cases = parse_once(vectors, |vectors, arena| {
        let context = vectors.get("context", arena).unwrap();
        let Some(Json::List(cases)) = vectors.get("cases", arena) else { panic!("no cases") };
        let (mut refused, mut wrong) = (Vec::new(), Vec::new());
        for case in cases {
            let field = |name| case.get(name, arena).and_then(|value| value.as_text(arena));
            let name = field("name").unwrap();
            match (field("expected"), render(field("template").unwrap(), context, arena)) {
                (Some(wanted), Ok(text)) if text == wanted => {}
                (None, Err(_)) => {}
                (Some(_), Err(error)) => refused.push((name.to_owned(), error.to_string())),
                (wanted, text) => wrong.push((name.to_owned(), wanted.map(str::to_owned), text.ok())),
            }
        }
        assert_eq!(wrong, []);
        let names: Vec<_> = refused.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, REFUSED, "{refused:?}");
        cases.len()
    });
    assert_eq!(cases, Ok(91));
}
