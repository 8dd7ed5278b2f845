//! Lines of files of any size: plain or gzip, by their first bytes, with a bound on the length of a line.
//!
//! A longer line is passed over without being kept. A gzip file that was cut, or is broken somewhere, gives its lines up to there and
//! says so. Members of a gzip file follow each other, as of rotated logs that were put together.

use std::io::{self, BufRead, BufReader, Cursor, ErrorKind, Read};

use flate2::bufread::MultiGzDecoder;
use memchr::memchr;

/// Longest line. Source: half of the gateway's limit for bodies, 64 MiB; longer prompts are longer than any context.
pub(super) const MAX_LINE_BYTES: usize = 32 << 20;
const BUFFER_BYTES: usize = 1 << 18;
/// Pieces of a line of up to [`BUFFER_BYTES`] each, after which whoever reads may look elsewhere: about 10 ms.
const PIECES: u32 = 64;
/// What editors of Windows write before UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A line, without its end, in the buffer.
    Line,
    /// A line that is longer than [`MAX_LINE_BYTES`].
    TooLong,
    /// Nothing yet of a line that is long, maybe endless: the call may be repeated and goes on where it was.
    Part,
    /// A line that was cut by what is wrong with the file.
    Cut(String),
    /// Nothing.
    End,
}

/// A file of which it may not be known yet what it holds.
enum Source<'a> {
    Unknown { file: Option<Box<dyn Read + Send + 'a>>, start: Vec<u8> },
    Known(BufReader<Box<dyn Read + Send + 'a>>),
}

impl<'a> Source<'a> {
    /// The text, once the first bytes have said whether it is packed.
    fn text(&mut self) -> io::Result<&mut BufReader<Box<dyn Read + Send + 'a>>> {
        if let Self::Unknown { file, start } = self {
            let reader = file.as_mut().expect("it is taken when it becomes known");
            let mut bytes = GZIP_MAGIC;
            while start.len() < bytes.len() {
                match reader.read(&mut bytes[start.len()..])? {
                    0 => break,
                    count => {
                        let from = start.len();
                        start.extend_from_slice(&bytes[from..from + count]);
                    }
                }
            }
            let is_gzip = *start == GZIP_MAGIC;
            let whole = Cursor::new(std::mem::take(start)).chain(file.take().expect("it is not known yet"));
            let text: Box<dyn Read + Send + 'a> = if is_gzip {
                Box::new(MultiGzDecoder::new(BufReader::with_capacity(BUFFER_BYTES, whole)))
            } else {
                Box::new(whole)
            };
            *self = Self::Known(BufReader::with_capacity(BUFFER_BYTES, text));
        }
        match self {
            Self::Known(text) => Ok(text),
            Self::Unknown { .. } => unreachable!("it has just become known"),
        }
    }
}

/// The lines of one file. Memory: one line.
pub(super) struct Lines<'a> {
    source: Source<'a>,
    max_bytes: usize,
    /// The line.
    pub(super) line: Vec<u8>,
    is_too_long: bool,
    is_first: bool,
    has_ended: bool,
}

impl<'a> Lines<'a> {
    /// The lines of `file`; nothing is read yet.
    pub(super) fn new(file: impl Read + Send + 'a, max_bytes: usize) -> Self {
        Self {
            source: Source::Unknown { file: Some(Box::new(file)), start: Vec::new() },
            max_bytes,
            line: Vec::new(),
            is_too_long: false,
            is_first: true,
            has_ended: false,
        }
    }

    /// Reads up to the end of the next line, which may take several calls.
    ///
    /// # Errors
    /// [`ErrorKind::Interrupted`]: the call may be repeated and goes on where it was. Others are the file's end and come as
    /// [`Next::Cut`].
    pub(super) fn next(&mut self) -> io::Result<Next> {
        if self.has_ended {
            return Ok(Next::End);
        }
        for _ in 0..PIECES {
            let piece = match self.source.text().and_then(BufRead::fill_buf) {
                Ok(piece) => piece,
                Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
                Err(error) => {
                    self.has_ended = true;
                    return Ok(Next::Cut(error.to_string()));
                }
            };
            if piece.is_empty() {
                self.has_ended = true;
                let has_some = self.is_too_long || !self.line.is_empty();
                return Ok(if has_some { self.whole() } else { Next::End });
            }
            let end = memchr(b'\n', piece);
            let text = &piece[..end.unwrap_or(piece.len())];
            if self.line.len() + text.len() > self.max_bytes {
                self.is_too_long = true;
                self.line = Vec::new();
            }
            if !self.is_too_long {
                self.line.extend_from_slice(text);
            }
            let taken = text.len() + usize::from(end.is_some());
            self.source.text()?.consume(taken);
            if end.is_some() {
                return Ok(self.whole());
            }
        }
        Ok(Next::Part)
    }

    fn whole(&mut self) -> Next {
        if std::mem::take(&mut self.is_first) && self.line.starts_with(BYTE_ORDER_MARK) {
            self.line.drain(..BYTE_ORDER_MARK.len());
        }
        if std::mem::take(&mut self.is_too_long) { Next::TooLong } else { Next::Line }
    }

    /// Makes room for the next line.
    pub(super) fn clear(&mut self) {
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn read(file: impl Read + Send, max_bytes: usize) -> Vec<String> {
        let mut lines = Lines::new(file, max_bytes);
        let mut seen = Vec::new();
        loop {
            seen.push(match lines.next() {
                Ok(Next::Part) => continue,
                Ok(Next::Line) => String::from_utf8_lossy(&lines.line).into_owned(),
                Ok(Next::TooLong) => "too long".into(),
                Ok(Next::Cut(_)) => "cut".into(),
                Ok(Next::End) => return seen,
                Err(_) => continue,
            });
            lines.clear();
        }
    }

    /// Gives a byte at a time, and is interrupted before each.
    struct Halting<'a>(&'a [u8], bool);

    impl Read for Halting<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 { Err(ErrorKind::Interrupted.into()) } else { self.0.read(&mut buffer[..1]) }
        }
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn lines_come_plain_and_from_several_gzip_members() {
        assert_eq!(read(&b"a\n\nb"[..], 9), ["a", "", "b"]);
        assert_eq!(read(&b""[..], 9), [""; 0]);
        let members = [gzip(b"a\nb"), gzip(b"c\n")].concat();
        assert_eq!(read(members.as_slice(), 9), ["a", "bc"]);
        assert_eq!(read(Halting(&members, false), 9), ["a", "bc"]);
    }

    #[test]
    fn a_mark_before_the_text_is_no_part_of_it() {
        assert_eq!(read(&b"\xef\xbb\xbfa\n\xef\xbb\xbfb"[..], 9), ["a", "\u{feff}b"]);
        assert_eq!(read(gzip(b"\xef\xbb\xbfa").as_slice(), 9), ["a"]);
    }

    #[test]
    fn a_line_without_end_lets_others_look() {
        let mut lines = Lines::new(io::repeat(0), 100);
        for _ in 0..3 {
            assert_eq!(lines.next().unwrap(), Next::Part);
        }
    }

    #[test]
    fn a_long_line_is_passed_over_and_not_kept() {
        let text = ["short", &"x".repeat(3 * BUFFER_BYTES), "next"].join("\n");
        assert_eq!(read(text.as_bytes(), 100), ["short", "too long", "next"]);
        let mut lines = Lines::new(text.as_bytes(), 100);
        for _ in 0..2 {
            lines.clear();
            lines.next().unwrap();
        }
        assert!(lines.line.capacity() <= 100);
        assert_eq!(read(b"x".repeat(101).as_slice(), 100), ["too long"]);
    }

    #[test]
    fn a_gzip_file_that_was_cut_gives_what_it_has() {
        let text: String = (0..20_000).map(|number| format!("line {number}\n")).collect();
        let whole = gzip(text.as_bytes());
        let seen = read(&whole[..whole.len() / 2], 100);
        assert!(seen.len() > 1000, "{}", seen.len());
        let (last, lines) = seen.split_last().unwrap();
        assert_eq!(last, "cut");
        assert!(lines.iter().enumerate().all(|(at, line)| *line == format!("line {at}")));
        // A byte that is wrong in the middle ends it as well.
        let mut broken = whole.clone();
        broken[whole.len() / 2] ^= 0xff;
        assert_eq!(read(broken.as_slice(), 100).last().unwrap(), "cut");
    }
}
