//! Chat templates, rendered as `transformers` and Jinja2 do.
//!
//! `minijinja` is set up to behave like Jinja2 in the sandbox of `transformers` (24 of 25 differences that a study of
//! public templates met are in syntax, methods and printed numbers). Of what still differs, most fails the rendering,
//! so that it is known.

pub(crate) mod format;
mod functions;
mod methods;
pub(crate) mod object;
mod source;

use std::io;

use jiff::tz::TimeZone;
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value};

use self::object::Dict;

/// Bounds of one rendering, against requests that ask for more than any prompt needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Steps: one for an instruction, and one for 64 bytes made or read.
    pub steps: u64,
    /// Bytes of a rendered prompt.
    pub prompt_bytes: usize,
}

impl Default for Limits {
    /// 16 M steps (some tenths of a second) and 32 MiB (about eight million tokens).
    fn default() -> Self {
        Self { steps: 16 << 20, prompt_bytes: 32 << 20 }
    }
}

/// A compiled chat template. Sharing it between threads is free.
#[derive(Debug)]
pub(crate) struct Template {
    environment: Environment<'static>,
    prompt_bytes: usize,
}

const NAME: &str = "chat";

/// Names that Jinja2 gives a meaning and `minijinja` does not.
const JINJA_ONLY: [&str; 5] = ["cycler", "joiner", "kwargs", "lipsum", "varargs"];

impl Template {
    /// Compiles `source`.
    ///
    /// # Errors
    /// It is no template, or one that only Jinja2 can render.
    pub(crate) fn new(source: &str, zone: TimeZone, limits: Limits) -> Result<Self, Error> {
        let mut environment = Environment::new();
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_fuel(Some(limits.steps));
        functions::add_to(&mut environment, zone);
        environment.add_template_owned(NAME, source::rewrite(source)?)?;
        let names = environment.get_template(NAME)?.undeclared_variables(false);
        if let Some(name) = JINJA_ONLY.into_iter().find(|name| names.contains(*name)) {
            return Err(Error::new(ErrorKind::UnknownFunction, format!("{name} is known to Jinja2 only")));
        }
        Ok(Self { environment, prompt_bytes: limits.prompt_bytes })
    }

    /// Appends the text that `context` makes of it. `now_us` is the time in microseconds since 1970.
    ///
    /// # Errors
    /// The template raised an exception, does what only Python can do, or went over a limit.
    pub(crate) fn render(
        &self,
        mut context: Vec<(Value, Value)>,
        now_us: i64,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        context.push((Value::from(functions::NOW), Value::from(now_us)));
        let mut writer = Bounded { left: self.prompt_bytes, out };
        let template = self.environment.get_template(NAME)?;
        template.render_captured_to(Value::from_object(Dict::new(context)), &mut writer).map(drop)
    }
}

/// Whether the template said no, as it does to a conversation that it was not made for.
pub(crate) fn is_raised(error: &Error) -> bool {
    error.kind() == ErrorKind::InvalidOperation
        && error.detail().is_some_and(|detail| detail.starts_with("raised: "))
}

/// Writes until there is no room left.
struct Bounded<'o> {
    left: usize,
    out: &'o mut Vec<u8>,
}

impl io::Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self.left.checked_sub(bytes.len()).ok_or(io::ErrorKind::FileTooLarge)?;
        self.out.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
