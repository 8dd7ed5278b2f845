//! One router for many processes: a decision service on a Unix socket.
//!
//! A gateway of N processes with a router each has N half-truths about what is in flight and cached. Here they ask one.
//! The socket is served by a thread for each connection with blocking calls: the shortest way between two processes, and
//! a client that is slow, mad or gone has nobody's thread but its own. All that is read or kept for one is bounded.
//! This is a crate of its own because the gateway needs none of it. [`Client`] is the other end.
//!
//! # Protocol, version 1
//!
//! Integers are little-endian. A frame is a `u32`, the number of bytes that follow, and these: a `u8` that says what is
//! asked, and its arguments. Every frame is answered by one frame, in order, so a client may send many before it reads; the
//! answer's first byte is 0, or one of [`Status`] and then a JSON object with a `message`.
//!
//! | byte | asks | arguments | answer |
//! | --- | --- | --- | --- |
//! | 0 | hello, always first | `"TRKL"`, `u32` version, `u64` client | `u32` version, `u64` tag of this sidecar |
//! | 1 | route | prompt | decision |
//! | 2 | peek | prompt | `u32` matched tokens, prompt tokens, prompt blocks, n; n times `u32` worker, matched tokens |
//! | 3 | route many | `u8` 0, `u16` 0, `u32` f, `u32` n, f bytes of fields, n times `u32` length, token ids | n decisions |
//! | 4 | first token | `u64` tag, then `u64` ids | `u32`: how many were new |
//! | 5 | complete | `u64` tag, then for each `u64` id, `u32` prompt, cached, completion tokens | the same |
//! | 6 | a call | a JSON object | JSON |
//! | 7 | explain | prompt | JSON |
//! | 8 | apply events | `u32` n, n bytes of a worker's name, a payload of its feed | `u64` stored, removed, orphans, refused, `u8` cleared |
//! | 9 | snapshot | - | the snapshot |
//!
//! A prompt is `u8` kind (0 token ids, 1 text), `u16` 0, `u32` f, f bytes of fields, and its token ids (`u32` each) or bytes
//! to the end of the frame. A field is `u8` name, `u32` length, bytes: 1 model, 2 salt, 3 an eligible worker, 4 an excluded one,
//! 5 (empty) only workers that are named as eligible, 6 a LoRA adapter, 7 for each block a `u64`, what it depends on besides its
//! tokens. A decision is `u64` id, `u32` worker, preferred worker, matched tokens,
//! prompt tokens, matched blocks, prompt blocks, reason, tokens that the worker's events told. `u32::MAX` is "none" throughout; workers are numbers, whose names the
//! call `workers` tells.
//!
//! All connections that said the same client number are one client. When the last one has ended and none came within the
//! grace time, what the client had booked is completed: a process that was killed leaves nothing in flight. What the last
//! answers of a connection have booked is completed at once if its client hangs up without reading them.

mod answer;
mod buffer;
mod call;
mod client;
mod clients;
mod connection;
mod serve;
mod wire;

pub use call::Call;
pub use client::{Client, Unwelcome};
pub use serve::{Error, Options, Sidecar};
pub use wire::{Field, NONE, Status, VERSION};
