//! Token ids of `BlockStored` events in a recorded payload.

enum Value {
    Int(u64),
    Text(String),
    List(Vec<Value>),
    Map(Vec<(Value, Value)>),
    Other,
}

/// The `token_ids` of each stored chain.
pub(crate) fn stored_tokens(payload: &[u8]) -> Vec<Vec<u32>> {
    let mut rest = payload;
    let Value::List(batch) = read(&mut rest) else { panic!("no batch") };
    let Some(Value::List(events)) = batch.into_iter().nth(1) else { panic!("no events") };
    let chains = events.into_iter().filter_map(|event| {
        let Value::Map(fields) = event else { panic!("no event") };
        fields.into_iter().find_map(|(key, value)| match (key, value) {
            (Value::Text(key), Value::List(ids)) if key == "token_ids" => Some(ids),
            _ => None,
        })
    });
    let id = |value| match value {
        Value::Int(id) => u32::try_from(id).unwrap(),
        _ => panic!("no id"),
    };
    chains.map(|ids| ids.into_iter().map(id).collect()).collect()
}

fn take<'p>(rest: &mut &'p [u8], length: usize) -> &'p [u8] {
    let (taken, left) = rest.split_at(length);
    *rest = left;
    taken
}

fn number(rest: &mut &[u8], length: usize) -> u64 {
    take(rest, length).iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn read(rest: &mut &[u8]) -> Value {
    let head = take(rest, 1)[0];
    match head {
        0x00..=0x7f => Value::Int(u64::from(head)),
        0x80..=0x8f => map(rest, u64::from(head & 15)),
        0x90..=0x9f => list(rest, u64::from(head & 15)),
        0xa0..=0xbf => text(rest, u64::from(head & 31)),
        0xc0 | 0xc2 | 0xc3 => Value::Other,
        0xcb => {
            take(rest, 8);
            Value::Other
        }
        0xcc..=0xcf => Value::Int(number(rest, 1 << (head - 0xcc))),
        0xd0..=0xd3 => {
            take(rest, 1 << (head - 0xd0));
            Value::Other
        }
        0xd9..=0xdb => {
            let length = number(rest, 1 << (head - 0xd9));
            text(rest, length)
        }
        0xdc | 0xdd => {
            let length = number(rest, if head == 0xdc { 2 } else { 4 });
            list(rest, length)
        }
        0xde | 0xdf => {
            let length = number(rest, if head == 0xde { 2 } else { 4 });
            map(rest, length)
        }
        0xe0..=0xff => Value::Other,
        _ => panic!("{head:#x}"),
    }
}

fn text(rest: &mut &[u8], length: u64) -> Value {
    Value::Text(String::from_utf8(take(rest, usize::try_from(length).unwrap()).to_vec()).unwrap())
}

fn list(rest: &mut &[u8], length: u64) -> Value {
    Value::List((0..length).map(|_| read(rest)).collect())
}

fn map(rest: &mut &[u8], length: u64) -> Value {
    Value::Map((0..length).map(|_| (read(rest), read(rest))).collect())
}
