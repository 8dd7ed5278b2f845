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

#[derive(Debug, PartialEq)]
struct Difference {
    name: String,
    wanted: Option<String>,
    made: Option<String>,
}

/// The templates of a file of vectors: those that Python renders and we refuse, and those that come out otherwise or
/// that only Python refuses.
fn differences(vectors: &str) -> (usize, Vec<(String, String)>, Vec<Difference>) {
    let found = parse_once(vectors, |vectors, arena| {
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
                (wanted, made) => wrong.push(Difference {
                    name: name.to_owned(),
                    wanted: wanted.map(str::to_owned),
                    made: made.ok(),
                }),
            }
        }
        (cases.len(), refused, wrong)
    });
    found.unwrap()
}

#[test]
fn renders_what_python_renders() {
    let (cases, refused, wrong) = differences(include_str!("../../tests/data/template_vectors.json"));
    assert_eq!(wrong, []);
    let refused: Vec<_> = refused.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!((cases, refused), (91, vec!["percent format"]));
}

/// What Jinja2 makes of more templates than the vectors have. Refusals are listed, and what comes out otherwise. A
/// template that only Python refuses makes no prompt, whatever we make of it.
#[test]
fn renders_more_of_what_python_renders() {
    const REFUSED: [&str; 19] = [
        "{{ w|wordcount }}",
        "{{ w|truncate(9) }}",
        "{{ w|center(30) }}",
        "{% for k, v in d|dictsort(false, 'key') %}{{ k }},{% endfor %}",
        "{{ s.encode() }}",
        "{{ w.startswith('the') }}{{ w.endswith(('x', 'y')) }}{{ w.startswith('x', 1) }}",
        "{{ w.replace('o', '0', 1) }}{{ w.zfill(22) }}{{ w.ljust(22) }}|",
        "{{ w.swapcase() }}",
        "{{ 'a\\tb'.expandtabs(4) }}",
        "{{ u|lower }}{{ u.lower() }}{{ u|upper }}{{ u.casefold() }}",
        "{{ s|e }}{{ '<'|escape }}{{ '<b>'|safe }}{{ '<b>x</b>'|striptags }}",
        "{% macro m(a, b='B', c=none) %}{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}{% endmacro %}\
         {{ m(1) }}{{ m(1, 2, 3) }}{{ m(a=5, c=1) }}",
        "{{ lipsum is defined }}{{ cycler is defined }}{{ joiner is defined }}",
        "{% set j = joiner(', ') %}{% for x in l %}{{ j() }}{{ x.t }}{% endfor %}",
        "{% set c = cycler('a', 'b') %}{% for x in l %}{{ c.next() }}{% endfor %}",
        "{{ 'http://x'|urlize if false }}{{ 'a b'|urlencode }}",
        "{{ 5|filesizeformat }}",
        "{{ w|wordwrap(10) }}",
        "{{ m is callable }}{{ range is callable }}",
    ];
    const OTHERWISE: [&str; 1] = ["{{ loop is defined }}{{ self is defined }}"];
    let (cases, refused, wrong) = differences(include_str!("../../tests/data/more_templates.json"));
    let refused: Vec<_> = refused.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(refused, REFUSED);
    let wrong: Vec<_> = wrong.iter().filter(|case| case.wanted.is_some()).collect();
    let names: Vec<_> = wrong.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names, OTHERWISE, "{wrong:#?}");
    assert_eq!(cases, 211);
}
