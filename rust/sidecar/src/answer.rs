//! What is asked, and the answer: from a frame to one call of the router and back.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use trunkline_core::{
    Decision, DecisionId, ExactPrompt, Millis, Prompt, Root, RouteRequest, Router, Usage, WorkerId,
};
use trunkline_events::{Feeds, Refused as Unapplied};

use crate::call;
use crate::clients::Clients;
use crate::wire::{
    Field, MAGIC, NONE, Reader, Refused, Status, VERSION, frame, put, put_decision, token_ids,
};

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) router: Arc<Router>,
    pub(crate) clock: Box<dyn Fn() -> Millis + Send + Sync>,
    pub(crate) clients: Clients,
    pub(crate) feeds: Feeds,
    /// Random; marks the decisions of this sidecar.
    pub(crate) tag: u64,
}

/// The client that a hello names.
pub(crate) fn hello(body: &[u8], tag: u64, out: &mut Vec<u8>) -> Result<u64, Refused> {
    let mut reader = Reader(body);
    if reader.u8()? != 0 || reader.bytes(4)? != MAGIC {
        return Err(Refused::malformed("the first frame is no hello"));
    }
    let version = reader.u32()?;
    if version != VERSION {
        let message = format!("version {version} of the protocol: this sidecar speaks {VERSION}");
        return Err(Refused::new(Status::Version, &message));
    }
    let client = reader.u64()?;
    frame(out, |out| {
        out.push(0);
        put(out, &[VERSION]);
        out.extend_from_slice(&tag.to_le_bytes());
    });
    Ok(client)
}

impl Shared {
    /// Appends the answer to a frame, and what it has booked.
    pub(crate) fn answer(
        &self,
        client: u64,
        body: &[u8],
        out: &mut Vec<u8>,
        booked: &mut Vec<DecisionId>,
    ) -> Result<(), Refused> {
        let mut reader = Reader(body);
        match reader.u8()? {
            1 => {
                let decision = Asked::read(&self.router, reader)?
                    .with(|request| Ok(self.router.route(request, (self.clock)())?))?;
                self.clients.booked(client, [decision.id]);
                booked.push(decision.id);
                ok(out, |out| put_decision(out, &decision));
            }
            2 => {
                let found =
                    Asked::read(&self.router, reader)?.with(|request| Ok(self.router.peek(request)?))?;
                ok(out, |out| {
                    let holders = found.workers.len() as u32;
                    put(out, &[found.matched_tokens, found.prompt_tokens, found.prompt_blocks, holders]);
                    for (worker, tokens) in found.workers {
                        put(out, &[worker.0, tokens]);
                    }
                });
            }
            3 => {
                let decisions = self.route_many(reader)?;
                let ids = decisions.iter().map(|decision| decision.id);
                self.clients.booked(client, ids.clone());
                booked.extend(ids);
                ok(out, |out| decisions.iter().for_each(|decision| put_decision(out, decision)));
            }
            4 => {
                let (own, count) = (reader.u64()? == self.tag, reader.0.len());
                let mut new = 0;
                for _ in 0..whole(count, 8)? {
                    let id = DecisionId::from_u64(reader.u64()?);
                    new += u32::from(own && self.router.first_token(id, (self.clock)()));
                }
                ok(out, |out| put(out, &[new]));
            }
            5 => {
                let (own, count) = (reader.u64()? == self.tag, reader.0.len());
                let mut new = 0;
                for _ in 0..whole(count, 20)? {
                    let id = DecisionId::from_u64(reader.u64()?);
                    let usage = usage(reader.u32()?, reader.u32()?, reader.u32()?);
                    if own {
                        new += u32::from(self.router.complete(id, usage, (self.clock)()));
                        self.clients.completed([id]);
                    }
                }
                ok(out, |out| put(out, &[new]));
            }
            6 => {
                let said = call::call(&self.router, &self.feeds, reader.0)?;
                ok(out, |out| out.extend_from_slice(said.to_string().as_bytes()));
            }
            7 => {
                let explained = Asked::read(&self.router, reader)?
                    .with(|request| Ok(self.router.explain(request, (self.clock)())?))?;
                let said = call::explained(&explained);
                ok(out, |out| out.extend_from_slice(said.to_string().as_bytes()));
            }
            8 => {
                let length = reader.u32()? as usize;
                let name = utf8(reader.bytes(length)?)?;
                let id = self.router.worker(name).ok_or_else(|| Refused::unknown_worker(name))?;
                let applied = self.feeds.apply(&self.router, id, reader.0, None, (self.clock)())?;
                ok(out, |out| {
                    for count in [applied.stored, applied.removed, applied.orphans, applied.refused] {
                        out.extend_from_slice(&count.to_le_bytes());
                    }
                    out.push(u8::from(applied.cleared));
                });
            }
            9 => {
                let saved = self.router.snapshot((self.clock)());
                Refused::if_longer_than_an_answer(saved.len())?;
                ok(out, |out| out.extend_from_slice(&saved));
            }
            other => return Err(Refused::malformed(&format!("{other} asks for nothing"))),
        }
        Ok(())
    }

    /// Completes bookings that nobody else will.
    pub(crate) fn give_back(&self, ids: &[DecisionId]) {
        for &id in ids {
            self.router.complete(id, None, (self.clock)());
        }
        self.clients.completed(ids.iter().copied());
    }

    /// Routes every prompt of a frame, or none.
    fn route_many(&self, mut reader: Reader<'_>) -> Result<Vec<Decision>, Refused> {
        reader.zeros(3)?;
        let (fields, count) = (reader.u32()? as usize, reader.u32()? as usize);
        let fields = Fields::read(&self.router, reader.bytes(fields)?)?;
        let lengths = token_ids(reader.bytes(count.saturating_mul(4))?)?;
        let ids = token_ids(reader.0)?;
        if lengths.iter().map(|&length| length as usize).sum::<usize>() != ids.len() {
            return Err(Refused::malformed("the lengths of the prompts do not fill the frame"));
        }
        let (mut rest, mut decisions) = (ids.as_slice(), Vec::with_capacity(count));
        for length in lengths {
            let (prompt, after) = rest.split_at(length as usize);
            rest = after;
            match self.router.route(&fields.request(Prompt::Tokens(prompt)), (self.clock)()) {
                Ok(decision) => decisions.push(decision),
                Err(error) => {
                    for decision in decisions {
                        self.router.complete(decision.id, None, (self.clock)());
                    }
                    return Err(error.into());
                }
            }
        }
        Ok(decisions)
    }
}

impl From<Unapplied> for Refused {
    fn from(refused: Unapplied) -> Self {
        match refused {
            Unapplied::Core(error) => error.into(),
            Unapplied::Payload(fault) => Self::payload(&fault),
        }
    }
}

fn utf8(bytes: &[u8]) -> Result<&str, Refused> {
    str::from_utf8(bytes).map_err(|_| Refused::malformed("a name is not UTF-8"))
}

fn ok(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    frame(out, |out| {
        out.push(0);
        fill(out);
    });
}

/// How many items of a size fill so many bytes.
fn whole(bytes: usize, item: usize) -> Result<usize, Refused> {
    if bytes.is_multiple_of(item) {
        Ok(bytes / item)
    } else {
        Err(Refused::malformed("a list ends within an item"))
    }
}

fn usage(prompt: u32, cached: u32, completion: u32) -> Option<Usage> {
    (prompt != NONE).then(|| Usage {
        prompt_tokens: prompt,
        cached_tokens: (cached != NONE).then_some(cached),
        completion_tokens: if completion == NONE { 0 } else { completion },
    })
}

/// What is told of a prompt beside it.
#[derive(Debug, Default)]
struct Fields {
    root: Root,
    /// That of prompts as workers' events have them.
    exact_root: Root,
    extras: Vec<u64>,
    text_model: u64,
    eligible: Option<Vec<WorkerId>>,
    exclude: Vec<WorkerId>,
}

impl Fields {
    fn read(router: &Router, bytes: &[u8]) -> Result<Self, Refused> {
        let (mut reader, mut fields) = (Reader(bytes), Self::default());
        let (mut lora, mut salt) = (None, None);
        while !reader.0.is_empty() {
            let (field, length) = (Field::read(reader.u8()?)?, reader.u32()? as usize);
            let value = reader.bytes(length)?;
            match field {
                Field::Model => {
                    let model = utf8(value)?;
                    let mut hasher = DefaultHasher::new();
                    model.hash(&mut hasher);
                    (fields.root, fields.text_model) = (fields.root.with("model", value), hasher.finish());
                }
                Field::Salt => (fields.root, salt) = (fields.root.with("salt", value), Some(value)),
                // A worker that is not in the fleet is neither eligible nor in the way.
                Field::Eligible => {
                    fields.eligible.get_or_insert_default().extend(router.worker(utf8(value)?))
                }
                Field::Excluded => fields.exclude.extend(router.worker(utf8(value)?)),
                Field::NamedOnly => drop(fields.eligible.get_or_insert_default()),
                Field::Lora => lora = Some(value),
                Field::Extras => match value.as_chunks() {
                    (extras, []) => {
                        fields.extras = extras.iter().map(|&extra| u64::from_le_bytes(extra)).collect()
                    }
                    _ => return Err(Refused::malformed("extras of 8 bytes each do not fill their field")),
                },
            }
        }
        fields.exact_root = Root::of_events(lora, salt);
        Ok(fields)
    }

    /// The request for a prompt; token ids are what workers' events have, too.
    fn request<'a>(&'a self, prompt: Prompt<'a>) -> RouteRequest<'a> {
        let exact = match prompt {
            Prompt::Tokens(ids) => {
                let (bytes, root) = (bytemuck::cast_slice(ids), self.exact_root);
                Some(ExactPrompt { bytes, root, is_tokens: true, extras: &self.extras })
            }
            _ => None,
        };
        RouteRequest {
            root: self.root,
            exact,
            eligible: self.eligible.as_deref(),
            exclude: &self.exclude,
            text_model: self.text_model,
            ..RouteRequest::new(prompt)
        }
    }
}

/// A prompt and its fields.
struct Asked<'a> {
    fields: Fields,
    text: Option<&'a [u8]>,
    ids: Vec<u32>,
}

impl<'a> Asked<'a> {
    fn read(router: &Router, mut reader: Reader<'a>) -> Result<Self, Refused> {
        let kind = reader.u8()?;
        reader.zeros(2)?;
        let length = reader.u32()? as usize;
        let fields = Fields::read(router, reader.bytes(length)?)?;
        match kind {
            0 => Ok(Self { fields, text: None, ids: token_ids(reader.0)? }),
            1 => Ok(Self { fields, text: Some(reader.0), ids: Vec::new() }),
            other => Err(Refused::malformed(&format!("{other} is no kind of prompt"))),
        }
    }

    fn with<R>(&self, act: impl FnOnce(&RouteRequest<'_>) -> Result<R, Refused>) -> Result<R, Refused> {
        match self.text {
            Some(text) => act(&self.fields.request(Prompt::Text(&[text]))),
            None => act(&self.fields.request(Prompt::Tokens(&self.ids))),
        }
    }
}
