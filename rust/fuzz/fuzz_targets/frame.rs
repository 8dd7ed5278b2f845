//! The event-stream framer against AWS's own reader: what is framed is read back.

#![no_main]

use aws_smithy_eventstream::frame::read_message_from;
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|pieces: Vec<Vec<u8>>| {
    let wire: Vec<u8> = pieces.iter().flat_map(|piece| trunkline_gateway::fuzzing::frame(piece)).collect();
    let mut rest = Bytes::from(wire);
    for piece in &pieces {
        let message = read_message_from(&mut rest).expect("a message for each piece");
        assert_eq!(message.payload(), piece);
        let header = |name: &str| {
            let mut named = message.headers().iter().filter(|header| header.name().as_str() == name);
            named
                .next()
                .and_then(|header| header.value().as_string().ok())
                .map(|value| value.as_str().to_owned())
        };
        assert_eq!(header(":message-type").as_deref(), Some("event"));
        assert_eq!(header(":event-type").as_deref(), Some("PayloadPart"));
    }
    assert!(rest.is_empty());
});
