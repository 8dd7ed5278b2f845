//! The fleet of a router in a snapshot: workers, slots, counters and what was learnt.

use super::wire::{Put, Reader};
use crate::error::Error;
use crate::jump::{Left, Slots};
use crate::router::{Millis, RouterConfig};
use crate::state::State;
use crate::view::Cache;
use crate::worker::{Counters, FleetSpeed, Speed, Worker, WorkerId, WorkerSpec};

/// A slot without a worker.
const HOLE: u32 = u32::MAX;

impl State {
    /// Appends all but the index and what is in flight.
    pub(crate) fn save_fleet(&self, out: &mut Vec<u8>) {
        out.put_count(self.workers.len());
        for worker in &self.workers {
            out.put_u8(u8::from(worker.is_some()));
            if let Some(worker) = worker {
                put_worker(worker, out);
            }
        }
        put_slots(&self.slots, out);
        self.fleet_speed.sums().into_iter().for_each(|sum| out.put_f64(sum));
        out.put_f64(self.mean_answer_tokens);
        out.put_u64(self.turn);
        self.decisions.iter().for_each(|&count| out.put_u64(count));
        out.put_u64(self.prompt_tokens);
        out.put_u64(self.matched_tokens);
        let rates = self.shared.rates();
        out.put_count(rates.len());
        for (model, rate) in rates {
            out.put_u64(model);
            out.put_f64(rate);
        }
    }

    /// Fills a new state with what [`save_fleet`](Self::save_fleet) wrote.
    pub(crate) fn load_fleet(&mut self, body: &mut Reader<'_>, config: &RouterConfig) -> Result<(), Error> {
        for id in 0..body.count(1)? {
            self.skip_ids(id + 1);
            if body.flag()? {
                self.load_worker(WorkerId(id as u32), body, config)?;
            }
        }
        self.slots = load_slots(body, &self.workers)?;
        let mut sums = [0.0; 5];
        for sum in &mut sums {
            *sum = body.f64()?;
        }
        self.fleet_speed = FleetSpeed::of_sums(sums);
        self.mean_answer_tokens = body.f64()?;
        body.require((0.0..1e9).contains(&self.mean_answer_tokens), "the mean answer is out of range")?;
        self.turn = body.u64()?;
        for count in &mut self.decisions {
            *count = body.counter()?;
        }
        self.prompt_tokens = body.counter()?;
        self.matched_tokens = body.counter()?;
        for _ in 0..body.count(16)? {
            let (model, rate) = (body.u64()?, body.f64()?);
            body.require(self.shared.set_rate(model, rate), "a length per token is out of range")?;
        }
        self.show_fleet();
        Ok(())
    }

    fn load_worker(
        &mut self,
        id: WorkerId,
        body: &mut Reader<'_>,
        config: &RouterConfig,
    ) -> Result<(), Error> {
        let name = body.text()?.to_owned();
        let spec = WorkerSpec {
            endpoint: if body.flag()? { Some(body.text()?.to_owned()) } else { None },
            weight: body.u32()?,
            capacity_tokens: body.option()?,
            slowness: if body.flag()? { Some(body.f64()?) } else { None },
            name,
        };
        spec.check().map_err(|_| body.refuse("a worker's setting is out of range"))?;
        body.require(!self.by_name.contains_key(&spec.name), "a worker is there twice")?;
        let worker = Worker {
            cache: Cache::default(),
            others_until: Millis(0),
            spec,
            healthy: body.flag()?,
            draining: body.flag()?,
            speed: Speed::of_parts(body.f64()?, body.f64()?, body.u32()?),
            counters: Counters {
                decisions: body.counter()?,
                prompt_tokens: body.counter()?,
                matched_tokens: body.counter()?,
                reported_prompt_tokens: body.counter()?,
                reported_cached_tokens: body.counter()?,
            },
        };
        self.put_worker(id, worker, config).map_err(|_| body.refuse("there are too many workers"))
    }
}

fn put_worker(worker: &Worker, out: &mut Vec<u8>) {
    let Worker { spec, speed, counters, .. } = worker;
    out.put_text(&spec.name);
    out.put_u8(u8::from(spec.endpoint.is_some()));
    if let Some(endpoint) = &spec.endpoint {
        out.put_text(endpoint);
    }
    out.put_u32(spec.weight);
    out.put_option(spec.capacity_tokens);
    out.put_u8(u8::from(spec.slowness.is_some()));
    if let Some(slowness) = spec.slowness {
        out.put_f64(slowness);
    }
    out.put_u8(u8::from(worker.healthy));
    out.put_u8(u8::from(worker.draining));
    let (observed_s, expected_s, pairs) = speed.parts();
    out.put_f64(observed_s);
    out.put_f64(expected_s);
    out.put_u32(pairs);
    out.put_u64(counters.decisions);
    out.put_u64(counters.prompt_tokens);
    out.put_u64(counters.matched_tokens);
    out.put_u64(counters.reported_prompt_tokens);
    out.put_u64(counters.reported_cached_tokens);
}

fn put_slots(slots: &Slots, out: &mut Vec<u8>) {
    out.put_count(slots.owner.len());
    for owner in &slots.owner {
        out.put_u32(owner.map_or(HOLE, |id| id.0));
    }
    let mut left: Vec<_> = slots.left.iter().collect();
    left.sort_unstable_by_key(|&(name, _)| name);
    out.put_count(left.len());
    for (name, Left { worker, slots }) in left {
        out.put_text(name);
        out.put_u32(worker.0);
        out.put_count(slots.len());
        slots.iter().for_each(|&slot| out.put_u32(slot));
    }
}

/// Slots belong to workers that are present, or are holes; a hole and an id are kept for one worker that left.
fn load_slots(body: &mut Reader<'_>, workers: &[Option<Box<Worker>>]) -> Result<Slots, Error> {
    let mut slots = Slots::default();
    let is_present = |id: u32| workers.get(id as usize).is_some_and(Option::is_some);
    for _ in 0..body.count(4)? {
        let owner = body.u32()?;
        body.require(owner == HOLE || is_present(owner), "a slot belongs to nobody")?;
        slots.owner.push((owner != HOLE).then_some(WorkerId(owner)));
    }
    let mut free: Vec<bool> = slots.owner.iter().map(Option::is_none).collect();
    let mut absent: Vec<bool> = workers.iter().map(Option::is_none).collect();
    let claim = |places: &mut [bool], at: u32| places.get_mut(at as usize).is_some_and(std::mem::take);
    for _ in 0..body.count(12)? {
        let (name, worker) = (body.text()?, body.u32()?);
        body.require(claim(&mut absent, worker), "the id of a worker that left is taken")?;
        let mut left = Left { worker: WorkerId(worker), slots: Vec::new() };
        for _ in 0..body.count(4)? {
            let slot = body.u32()?;
            body.require(claim(&mut free, slot), "the slot of a worker that left is taken")?;
            left.slots.push(slot);
        }
        slots.left.insert(name.to_owned(), left);
    }
    Ok(slots)
}
