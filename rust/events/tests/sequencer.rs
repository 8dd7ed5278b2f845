//! A sequencer between a publisher and a view: whatever gets lost on the way, the view ends up right or says that it is not.

#![allow(clippy::unwrap_used, reason = "a test fails where its ground gives way")]

mod support;

use std::collections::VecDeque;

use proptest::prelude::*;
use support::{batch_of, stored};
use trunkline_core::Millis;
use trunkline_events::sequencer::{Action, Message, Outcome};
use trunkline_events::{Health, Sequencer};

/// An engine: its messages since it began, of which the last `kept` can be replayed.
struct Publisher {
    sent: Vec<Vec<u8>>,
    kept: usize,
    answers: bool,
}

struct World {
    publisher: Publisher,
    /// Published and neither delivered nor lost.
    wire: VecDeque<(u64, Vec<u8>)>,
    sequencer: Sequencer<Vec<u8>>,
    /// What is left of the answer to a replay; `None` at its end.
    replay: VecDeque<Option<(u64, Vec<u8>)>>,
    replaying: bool,
    /// Payloads applied since the view was emptied.
    view: Vec<Vec<u8>>,
    resets: Vec<&'static str>,
    asked: Vec<u64>,
    now: u64,
    /// Makes every message of every life another one, with a later time stamp.
    clock: u32,
}

impl World {
    fn new(replays: bool, kept: usize) -> Self {
        Self {
            publisher: Publisher { sent: Vec::new(), kept, answers: true },
            wire: VecDeque::new(),
            sequencer: Sequencer::new(replays),
            replay: VecDeque::new(),
            replaying: false,
            view: Vec::new(),
            resets: Vec::new(),
            asked: Vec::new(),
            now: 0,
            clock: 0,
        }
    }

    /// Connected, with `count` messages delivered.
    fn live(replays: bool, count: usize) -> Self {
        let mut world = Self::new(replays, usize::MAX);
        world.connect();
        (0..count).for_each(|_| world.publish());
        world.settle();
        world
    }

    fn connect(&mut self) {
        self.sequencer.connected(Millis(self.now));
        self.act();
    }

    fn disconnect(&mut self) {
        self.wire.clear();
        self.sequencer.disconnected(Millis(self.now));
        self.act();
    }

    fn publish(&mut self) {
        self.clock += 1;
        let payload = batch_of(f64::from(self.clock), vec![stored(&[self.clock.into()], None, &[1], 1)]);
        self.wire.push_back((self.publisher.sent.len() as u64, payload.clone()));
        self.publisher.sent.push(payload);
    }

    fn restart(&mut self) {
        self.disconnect();
        self.publisher.sent.clear();
        self.connect();
    }

    fn deliver(&mut self, sequence: u64, payload: Vec<u8>) {
        self.sequencer.message(Message::new(sequence, payload), Millis(self.now));
        self.act();
    }

    fn deliver_next(&mut self) {
        if let Some((sequence, payload)) = self.wire.pop_front() {
            self.deliver(sequence, payload);
        }
    }

    fn again(&mut self, sequence: usize) {
        self.deliver(sequence as u64, self.publisher.sent[sequence].clone());
    }

    /// One more part of the replay.
    fn answer(&mut self) {
        match self.replay.pop_front() {
            Some(Some((sequence, payload))) => {
                self.sequencer.replayed(Message::new(sequence, payload), Millis(self.now));
            }
            Some(None) => {
                self.replaying = false;
                self.sequencer.replay_ended(Millis(self.now));
            }
            None => {}
        }
        self.act();
    }

    fn wait(&mut self, ms: u64) {
        for _ in 0..ms / 10 {
            self.now += 10;
            self.sequencer.tick(Millis(self.now));
            self.act();
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.sequencer.next_action() {
            match action {
                Action::Apply(message) => {
                    self.view.push(message.payload.clone());
                    self.sequencer.done(&message, Outcome::Applied);
                }
                Action::Reset(reason) => {
                    self.view.clear();
                    self.resets.push(reason);
                }
                Action::Replay { from } => {
                    self.asked.push(from);
                    self.replay.clear();
                    self.replaying = true;
                    if self.publisher.answers {
                        let sent = &self.publisher.sent;
                        let from = sent.len().saturating_sub(self.publisher.kept).max(from as usize);
                        let kept = sent.iter().cloned().enumerate().skip(from);
                        self.replay.extend(kept.map(|(at, payload)| Some((at as u64, payload))));
                        self.replay.push_back(None);
                    }
                }
                Action::StopReplay => {
                    self.replay.clear();
                    self.replaying = false;
                }
            }
        }
    }

    /// Lets everything arrive that is under way, for at most three seconds.
    fn settle(&mut self) {
        for _ in 0..300 {
            while !self.wire.is_empty() || !self.replay.is_empty() {
                self.deliver_next();
                self.answer();
            }
            self.wait(10);
        }
    }

    fn health(&self) -> Health {
        self.sequencer.health()
    }

    fn is_right(&self) -> bool {
        self.view == self.publisher.sent
    }
}

#[test]
fn what_was_published_before_the_start_is_replayed() {
    let mut world = World::new(true, usize::MAX);
    assert_eq!(world.health(), Health::Connecting);
    (0..5).for_each(|_| world.publish());
    world.wire.clear();
    world.connect();
    assert_eq!((world.health(), &world.asked[..]), (Health::Replaying, &[0][..]));
    // Two that come while the replay runs, one of them in it as well.
    world.again(4);
    world.publish();
    world.deliver_next();
    assert!(world.view.is_empty());
    world.settle();
    assert!(world.is_right() && world.resets.is_empty());
    assert_eq!((world.health(), world.sequencer.counts().duplicates), (Health::Live, 1));
}

#[test]
fn a_gap_is_filled_from_the_last_message_on() {
    let mut world = World::live(true, 3);
    (0..3).for_each(|_| world.publish());
    world.wire.drain(..2);
    world.deliver_next();
    assert_eq!((world.health(), world.asked.last()), (Health::Replaying, Some(&2)));
    world.settle();
    assert!(world.is_right() && world.resets.is_empty());
    assert_eq!((world.health(), world.sequencer.counts().gaps), (Health::Live, 1));
}

#[test]
fn duplicates_and_late_ones_are_no_restart() {
    for replays in [true, false] {
        let mut world = World::live(replays, 600);
        world.again(300);
        world.again(599);
        if replays {
            // From long before what is remembered: the proof tells.
            world.again(0);
        }
        world.publish();
        world.publish();
        world.wire.swap(0, 1);
        world.settle();
        assert!(world.is_right() && world.resets.is_empty());
        assert_eq!((world.health(), world.sequencer.counts().restarts), (Health::Live, 0));
    }
}

#[test]
fn a_number_that_goes_back_with_a_newer_time_is_a_restart() {
    for replays in [true, false] {
        let mut world = World::live(replays, 4);
        world.publisher.sent.clear();
        // Seen without a new connection, and not from its first message on.
        world.publish();
        world.publish();
        world.deliver_next();
        assert_eq!(world.resets, ["restart"]);
        world.settle();
        assert!(world.is_right(), "{replays}");
        assert_eq!((world.health(), world.sequencer.counts().restarts), (Health::Live, 1));
    }
}

#[test]
fn a_restart_is_seen_even_if_the_clock_went_back() {
    for replays in [true, false] {
        let mut world = World::live(replays, 4);
        world.publisher.sent.clear();
        // Other payloads under remembered numbers.
        let payload = batch_of(0.5, vec![]);
        world.publisher.sent.push(payload.clone());
        world.deliver(0, payload);
        world.settle();
        assert!(world.is_right() && world.resets == ["restart"], "{replays}");
    }
}

#[test]
fn a_restart_behind_a_lost_connection_is_seen_by_the_proof() {
    let mut world = World::live(true, 4);
    world.disconnect();
    assert_eq!(world.health(), Health::Lost { since: Millis(world.now) });
    world.publisher.sent.clear();
    // The new one is further on than the old one was: no number goes back.
    (0..9).for_each(|_| world.publish());
    world.wire.clear();
    world.connect();
    world.settle();
    assert!(world.is_right() && world.resets == ["restart"]);
    // And one that has published nothing yet.
    world.restart();
    world.settle();
    assert!(world.view.is_empty() && world.health() == Health::Live);
}

#[test]
fn a_connection_that_comes_back_keeps_the_view() {
    let mut world = World::live(true, 4);
    world.disconnect();
    (0..3).for_each(|_| world.publish());
    world.wire.clear();
    world.connect();
    assert_eq!(world.asked.last(), Some(&3));
    world.settle();
    assert!(world.is_right() && world.resets.is_empty());
}

#[test]
fn a_buffer_that_is_too_short_makes_the_view_partial_until_it_is_cleared() {
    let mut world = World::new(true, 3);
    (0..5).for_each(|_| world.publish());
    world.wire.clear();
    world.connect();
    world.settle();
    assert_eq!(world.health(), Health::Partial { reason: "short replay" });
    assert_eq!(world.view, world.publisher.sent[2..]);
    world.publish();
    let (sequence, payload) = world.wire.pop_front().unwrap();
    world.sequencer.message(Message::new(sequence, payload), Millis(world.now));
    let Some(Action::Apply(message)) = world.sequencer.next_action() else { panic!("in order") };
    world.sequencer.done(&message, Outcome::Cleared);
    assert_eq!(world.health(), Health::Live);
    // A gap that is longer than the buffer.
    (0..9).for_each(|_| world.publish());
    world.wire.drain(..8);
    world.settle();
    assert_eq!(
        (world.health(), &world.resets[..]),
        (Health::Partial { reason: "short replay" }, &["replay"][..])
    );
    assert_eq!(world.view, world.publisher.sent[12..]);
}

#[test]
fn a_silent_replay_socket_is_given_up_and_tried_again() {
    let mut world = World::new(true, usize::MAX);
    world.publisher.answers = false;
    (0..3).for_each(|_| world.publish());
    world.wire.clear();
    world.connect();
    world.publish();
    world.deliver_next();
    world.wait(1_490);
    assert_eq!(world.health(), Health::Replaying);
    world.wait(20);
    assert_eq!(world.health(), Health::Partial { reason: "no replay" });
    assert_eq!(world.view, world.publisher.sent[3..], "what comes is applied meanwhile");
    world.publisher.answers = true;
    world.settle();
    assert!(world.is_right());
    assert_eq!((world.health(), world.sequencer.counts().failed_replays), (Health::Live, 1));
}

#[test]
fn without_replays_a_gap_empties_the_view() {
    let mut world = World::live(false, 3);
    assert_eq!(world.health(), Health::Live);
    (0..2).for_each(|_| world.publish());
    world.wire.pop_front();
    world.deliver_next();
    assert_eq!(world.health(), Health::Replaying);
    world.wait(100);
    assert_eq!((world.health(), &world.resets[..]), (Health::Partial { reason: "gap" }, &["gap"][..]));
    assert_eq!(world.view, world.publisher.sent[4..]);
    // A new engine is known from its start.
    world.restart();
    world.publish();
    world.settle();
    assert!(world.is_right() && world.health() == Health::Live);
}

#[test]
fn without_replays_a_late_start_is_partial() {
    let mut world = World::new(false, 0);
    world.connect();
    assert_eq!(world.health(), Health::Partial { reason: "no replay" });
    world.deliver(7, batch_of(1.0, vec![]));
    assert!(matches!(world.health(), Health::Partial { .. }));
    let mut world = World::live(false, 1);
    assert_eq!(world.health(), Health::Live);
    world.publish();
    world.settle();
    assert!(world.is_right());
}

#[test]
fn an_unreadable_message_makes_the_view_partial() {
    let mut world = World::live(true, 1);
    let read = |world: &mut World, outcome| {
        world.publish();
        let (sequence, payload) = world.wire.pop_front().unwrap();
        world.sequencer.message(Message::new(sequence, payload), Millis(world.now));
        let Some(Action::Apply(message)) = world.sequencer.next_action() else { panic!("in order") };
        world.sequencer.done(&message, outcome);
    };
    read(&mut world, Outcome::Unreadable);
    assert_eq!(world.health(), Health::Partial { reason: "unreadable" });
    read(&mut world, Outcome::Applied);
    assert_eq!(world.health(), Health::Partial { reason: "unreadable" });
    read(&mut world, Outcome::Cleared);
    assert_eq!(world.health(), Health::Live);
}

#[test]
fn a_number_from_nowhere_does_not_keep_it_busy() {
    let mut world = World::live(true, 3);
    world.deliver(1 << 60, batch_of(1e9, vec![]));
    world.deliver(u64::MAX, b"garbage".to_vec());
    let asked = world.asked.len();
    world.settle();
    assert!(world.is_right() && world.health() == Health::Live);
    assert!(world.asked.len() - asked <= 4, "{:?}", world.asked);
    world.publish();
    world.settle();
    assert!(world.is_right() && world.resets.is_empty());
}

#[test]
fn what_is_held_during_a_replay_is_bounded() {
    let mut world = World::live(true, 1);
    world.publisher.answers = false;
    world.publish();
    world.wire.clear();
    for _ in 0..10_000 {
        world.publish();
        world.deliver_next();
    }
    assert_eq!(world.sequencer.counts().overflows, 2);
    world.publisher.answers = true;
    world.wait(10_000);
    world.publish();
    world.settle();
    assert!(world.is_right());
    assert_eq!(world.health(), Health::Live);
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Publish(u8),
    Deliver(u8),
    Answer(u8),
    Lose,
    Swap,
    Again(prop::sample::Index),
    Reconnect(u8),
    Restart(u8),
    Silent(bool),
    Wait(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u8..6).prop_map(Step::Publish),
        4 => (1u8..6).prop_map(Step::Deliver),
        4 => (1u8..9).prop_map(Step::Answer),
        2 => Just(Step::Lose),
        1 => Just(Step::Swap),
        1 => any::<prop::sample::Index>().prop_map(Step::Again),
        1 => (0u8..4).prop_map(Step::Reconnect),
        1 => (0u8..9).prop_map(Step::Restart),
        1 => any::<bool>().prop_map(Step::Silent),
        2 => (0u16..3_000).prop_map(Step::Wait),
    ]
}

fn take(world: &mut World, step: Step) {
    match step {
        Step::Publish(count) => (0..count).for_each(|_| world.publish()),
        Step::Deliver(count) => (0..count).for_each(|_| world.deliver_next()),
        Step::Answer(count) => (0..count).for_each(|_| world.answer()),
        Step::Lose => _ = world.wire.pop_front(),
        Step::Swap if world.wire.len() > 1 => world.wire.swap(0, 1),
        Step::Swap => {}
        Step::Again(at) if !world.publisher.sent.is_empty() => {
            world.again(at.index(world.publisher.sent.len()))
        }
        Step::Again(_) => {}
        Step::Reconnect(missed) => {
            world.disconnect();
            (0..missed).for_each(|_| world.publish());
            world.wire.clear();
            world.connect();
        }
        Step::Restart(missed) => {
            world.disconnect();
            world.publisher.sent.clear();
            (0..missed).for_each(|_| world.publish());
            world.wire.clear();
            world.connect();
        }
        Step::Silent(silent) => world.publisher.answers = !silent,
        Step::Wait(ms) => world.wait(ms.into()),
    }
}

proptest! {
    #[test]
    fn with_replays_the_view_ends_up_right(steps in prop::collection::vec(step(), 0..60)) {
        let mut world = World::new(true, usize::MAX);
        world.connect();
        for step in steps {
            take(&mut world, step);
        }
        world.publisher.answers = true;
        world.publish();
        // A replay that is being waited for in vain and the pause behind it, then the three seconds.
        world.settle();
        world.settle();
        prop_assert_eq!(world.health(), Health::Live);
        prop_assert!(world.is_right(), "{} of {}", world.view.len(), world.publisher.sent.len());
    }

    #[test]
    fn with_short_buffers_it_is_right_or_partial(steps in prop::collection::vec(step(), 0..60), kept in 1usize..6) {
        let mut world = World::new(true, kept);
        world.connect();
        for step in steps {
            take(&mut world, step);
        }
        world.publisher.answers = true;
        world.publish();
        world.settle();
        world.settle();
        match world.health() {
            Health::Live => prop_assert!(world.is_right()),
            Health::Partial { reason } => {
                prop_assert_eq!(reason, "short replay");
                let sent = &world.publisher.sent;
                prop_assert!(world.view[..] == sent[sent.len() - world.view.len()..], "a whole end");
            }
            other => prop_assert!(false, "{other:?}"),
        }
    }

    #[test]
    fn without_replays_it_is_right_or_partial(steps in prop::collection::vec(step(), 0..60)) {
        let mut world = World::new(false, 0);
        world.connect();
        for step in steps {
            // A new engine of which as many messages are lost as the old one had sent cannot be told from the old one.
            take(&mut world, match step {
                Step::Restart(_) => Step::Restart(0),
                other => other,
            });
            if world.publisher.sent.is_empty() {
                world.publish();
                world.deliver_next();
            }
        }
        world.publish();
        world.settle();
        match world.health() {
            Health::Live => prop_assert!(world.is_right()),
            Health::Partial { .. } => {
                let sent = &world.publisher.sent;
                prop_assert!(world.view[..] == sent[sent.len() - world.view.len()..], "a whole end");
            }
            other => prop_assert!(false, "{other:?}"),
        }
    }

    #[test]
    fn nothing_that_comes_makes_it_panic(
        inputs in prop::collection::vec((0u8..6, prop_oneof![0u64..9, any::<u64>()], 0u8..4, 0u64..2_000), 0..80),
        replays: bool,
    ) {
        let mut sequencer = Sequencer::new(replays);
        let mut now = 0;
        for (what, sequence, content, ms) in inputs {
            now += ms;
            let message = Message::new(sequence, batch_of(f64::from(content), vec![]));
            match what {
                0 => sequencer.connected(Millis(now)),
                1 => sequencer.disconnected(Millis(now)),
                2 => sequencer.message(message, Millis(now)),
                3 => sequencer.replayed(message, Millis(now)),
                4 => sequencer.replay_ended(Millis(now)),
                _ => sequencer.replay_failed(Millis(now)),
            }
            sequencer.tick(Millis(now));
            while let Some(action) = sequencer.next_action() {
                if let Action::Apply(message) = action {
                    sequencer.done(&message, Outcome::Applied);
                }
            }
        }
    }
}
