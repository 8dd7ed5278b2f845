//! Messages of AWS's event stream, made around bytes that are not copied.
//!
//! ```text
//! total length u32 | headers length u32 | CRC-32 of these 8 bytes | headers | payload | CRC-32 of all before it
//! ```
//!
//! Numbers are big-endian. A header is name length u8, name, type u8 (7: a string), value length u16, value. Source: the
//! "Amazon event stream" specification of the AWS SDKs (Smithy, `application/vnd.amazon.eventstream`).

use bytes::Bytes;

/// Bytes before the headers.
const PRELUDE_BYTES: usize = 12;
/// Bytes of a CRC.
const CRC_BYTES: usize = 4;
/// Type of a header's value: a string.
const STRING: u8 = 7;
/// Largest payload of one message; AWS's SDKs refuse more than 16 or 24 MiB. Larger pieces become several messages.
pub(crate) const MAX_PAYLOAD_BYTES: usize = 16 << 20;

/// The three parts of a message in their order: prelude and headers, payload, CRC.
pub(crate) type Message = [Bytes; 3];

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A piece of the answer: event `PayloadPart`.
    Part,
    /// An exception of this name, whose payload is JSON; it ends the stream.
    Exception(&'static str),
}

impl Kind {
    /// Header names and values, in the order of the wire.
    fn headers(self) -> [(&'static str, &'static str); 3] {
        match self {
            Self::Part => [
                (":event-type", "PayloadPart"),
                (":content-type", "application/octet-stream"),
                (":message-type", "event"),
            ],
            Self::Exception(name) => [
                (":exception-type", name),
                (":content-type", "application/json"),
                (":message-type", "exception"),
            ],
        }
    }
}

/// Takes up to [`MAX_PAYLOAD_BYTES`] from the front of `rest` and makes a message of them. The payload is that very memory.
///
/// Cost: one allocation of about 110 bytes, and the CRC of the payload (some 10 GB/s with SIMD).
pub(crate) fn next(kind: Kind, rest: &mut Bytes) -> Message {
    let payload = rest.split_to(rest.len().min(MAX_PAYLOAD_BYTES));
    let headers = kind.headers();
    let headers_bytes: usize = headers.iter().map(|(name, value)| 1 + name.len() + 1 + 2 + value.len()).sum();
    let head_bytes = PRELUDE_BYTES + headers_bytes;
    let total = (head_bytes + payload.len() + CRC_BYTES) as u32;
    let mut frame = Vec::with_capacity(head_bytes + CRC_BYTES);
    frame.extend_from_slice(&total.to_be_bytes());
    frame.extend_from_slice(&(headers_bytes as u32).to_be_bytes());
    frame.extend_from_slice(&crc32fast::hash(&frame).to_be_bytes());
    for (name, value) in headers {
        frame.push(name.len() as u8);
        frame.extend_from_slice(name.as_bytes());
        frame.push(STRING);
        frame.extend_from_slice(&(value.len() as u16).to_be_bytes());
        frame.extend_from_slice(value.as_bytes());
    }
    let mut crc = crc32fast::Hasher::new();
    crc.update(&frame);
    crc.update(&payload);
    frame.extend_from_slice(&crc.finalize().to_be_bytes());
    let mut head = Bytes::from(frame);
    let tail = head.split_off(head_bytes);
    [head, payload, tail]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// A plain reader of the format, which checks every number of it.
    fn read(mut bytes: &[u8]) -> Vec<(BTreeMap<String, String>, Vec<u8>)> {
        fn number(bytes: &[u8]) -> usize {
            u32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize
        }
        /// CRC-32 (IEEE), a bit at a time.
        fn crc(bytes: &[u8]) -> usize {
            let mut crc = !0u32;
            for &byte in bytes {
                crc ^= u32::from(byte);
                for _ in 0..8 {
                    crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
                }
            }
            !crc as usize
        }
        let mut messages = Vec::new();
        while !bytes.is_empty() {
            let (total, headers_bytes) = (number(bytes), number(&bytes[4..]));
            assert_eq!(number(&bytes[8..]), crc(&bytes[..8]), "the prelude's CRC");
            let (message, rest) = bytes.split_at(total);
            assert_eq!(number(&message[total - 4..]), crc(&message[..total - 4]), "the message's CRC");
            let (mut headers, payload) = message[12..total - 4].split_at(headers_bytes);
            let mut named = BTreeMap::new();
            while !headers.is_empty() {
                let (name, value) = headers[1..].split_at(usize::from(headers[0]));
                assert_eq!(value[0], 7);
                let length = usize::from(u16::from_be_bytes([value[1], value[2]]));
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                named.insert(text(name), text(&value[3..3 + length]));
                headers = &value[3 + length..];
            }
            messages.push((named, payload.to_vec()));
            bytes = rest;
        }
        messages
    }

    fn wire(kind: Kind, payload: &[u8]) -> Vec<u8> {
        next(kind, &mut Bytes::copy_from_slice(payload)).concat()
    }

    #[test]
    fn a_known_message_has_known_bytes() {
        let frame = wire(Kind::Part, b"hi");
        // Prelude, headers, payload, CRC.
        assert_eq!(frame.len(), 12 + 89 + 2 + 4);
        assert_eq!(frame[..8], [0, 0, 0, 107, 0, 0, 0, 89]);
        assert_eq!(frame[12..24], *b"\x0b:event-type");
        let [(headers, payload)] = &read(&frame)[..] else { panic!("one message") };
        assert_eq!(payload, b"hi");
        let named: Vec<(&str, &str)> = headers.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        let wanted = [
            (":content-type", "application/octet-stream"),
            (":event-type", "PayloadPart"),
            (":message-type", "event"),
        ];
        assert_eq!(named, wanted);
    }

    #[test]
    fn an_exception_names_itself() {
        let frame = wire(Kind::Exception("ModelStreamError"), b"{}");
        let (headers, payload) = &read(&frame)[0];
        assert_eq!(headers[":exception-type"], "ModelStreamError");
        assert_eq!((headers[":message-type"].as_str(), payload.as_slice()), ("exception", b"{}".as_slice()));
    }

    #[test]
    fn the_payload_is_not_copied_and_a_large_one_is_split() {
        let mut rest = Bytes::from(vec![7; MAX_PAYLOAD_BYTES + 5]);
        let start = rest.as_ptr();
        let first = next(Kind::Part, &mut rest);
        assert_eq!((first[1].as_ptr(), first[1].len(), rest.len()), (start, MAX_PAYLOAD_BYTES, 5));
        let second = next(Kind::Part, &mut rest);
        assert_eq!((second[1].len(), rest.len()), (5, 0));
    }

    proptest! {
        #[test]
        fn what_is_framed_is_read_back(payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..3000), 0..6)) {
            let bytes: Vec<u8> = payloads.iter().flat_map(|payload| wire(Kind::Part, payload)).collect();
            let read: Vec<Vec<u8>> = read(&bytes).into_iter().map(|(_, payload)| payload).collect();
            prop_assert_eq!(read, payloads);
        }
    }
}
