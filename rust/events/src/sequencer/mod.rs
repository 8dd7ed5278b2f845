//! Puts a source's messages in order: which to apply, when the view is to be emptied, when to ask for a replay.
//!
//! No sockets and no clock: the feed tells what came in and at what time, and carries out the [`Action`]s. So every way in which
//! messages get lost can be tested without any of it.
//!
//! A publisher numbers its messages from 0 and keeps the last ones for replays. Four things can go wrong, and each has one answer:
//!
//! - *A number is missing*: ask for a replay. It begins with the last message that was applied: if that comes back unchanged, it
//!   is still the same publisher, and the missing ones follow.
//! - *A number comes again*: it is a duplicate if it is the same message as before. If it is another one, or newer by its time
//!   stamp than everything before it, the publisher began anew: the view is emptied and filled by a replay from 0.
//! - *The publisher has forgotten what is missing*: the view is emptied, filled with what there is, and [`Health::Partial`]
//!   until a message clears the cache, which makes everything known again.
//! - *It does not answer*: the view is emptied and partial, messages are applied as they come, and a replay is tried again.

mod message;

use std::collections::VecDeque;

use trunkline_core::Millis;

pub use self::message::{Action, Counts, Health, Message, Outcome};

/// Numbers that are remembered to tell duplicates from a new beginning.
const RECENT: usize = 512;
/// Messages that are held while a replay runs, and their bytes.
const HELD_MESSAGES: usize = 4096;
const HELD_BYTES: usize = 16 << 20;
/// How long a replay may be silent. Publishers look for requests ten times a second.
const SILENCE_MS: u64 = 1_500;
/// Shortest time between two requests for a replay. It doubles, up to 64 times, while they follow each other within a second.
const SPACING_MS: u64 = 20;
/// Longest time until a failed replay is tried again.
const RETRY_MS: u64 = 2_000;
/// Replays in a row without a message behind the last one, after which a message that is further on is not believed.
const FRUITLESS: u32 = 2;
/// How long a late message is waited for where there are no replays.
const GRACE_MS: u64 = 100;

/// Why a view is partial that lacks what no replay brought.
const NO_REPLAY: &str = "no replay";

/// What a replay is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Want {
    /// The messages behind the last one that was applied, which is asked for as well, as a proof.
    Rest,
    /// Everything there is.
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Live,
    /// Without replays: a late message is waited for.
    Late {
        until: Millis,
    },
    /// A replay is wanted as soon as one may be asked for.
    Waiting {
        want: Want,
        until: Millis,
    },
    Replaying {
        want: Want,
        heard: Millis,
        answered: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Never,
    Up,
    Down { since: Millis },
}

/// The state of one source. Its methods take the time in milliseconds of any clock that does not go back.
#[derive(Debug)]
pub struct Sequencer<P> {
    /// Whether the publisher can be asked for replays.
    replays: bool,
    /// The number that comes next; means something only if one was applied.
    next: u64,
    /// Whether a message was applied since the last beginning.
    begun: bool,
    /// Whether the view holds anything.
    filled: bool,
    /// Numbers and prints of the last messages, by number modulo their count.
    recent: Box<[Option<(u64, u64)>]>,
    newest_ts: f64,
    phase: Phase,
    link: Link,
    partial: Option<&'static str>,
    /// Messages applied so far; then, when `partial` was set and when the view was emptied.
    applied: u64,
    partial_at: u64,
    reset_at: u64,
    /// When a failed replay is tried again.
    retry: Option<Millis>,
    failures: u32,
    /// Replays in a row that brought nothing, and whether the last one did.
    fruitless: u32,
    fruitful: bool,
    asked: Option<Millis>,
    spacing: u32,
    not_before: Millis,
    held: VecDeque<Message<P>>,
    held_bytes: usize,
    actions: VecDeque<Action<P>>,
    counts: Counts,
}

impl<P> Sequencer<P> {
    /// A source that was never connected. `replays`: whether it has a replay socket.
    #[must_use]
    pub fn new(replays: bool) -> Self {
        Self {
            replays,
            next: 0,
            begun: false,
            filled: false,
            recent: vec![None; RECENT].into(),
            newest_ts: f64::NEG_INFINITY,
            phase: Phase::Live,
            link: Link::Never,
            partial: None,
            applied: 0,
            partial_at: 0,
            reset_at: 0,
            retry: None,
            failures: 0,
            fruitless: 0,
            fruitful: false,
            asked: None,
            spacing: 0,
            not_before: Millis(0),
            held: VecDeque::new(),
            held_bytes: 0,
            actions: VecDeque::new(),
            counts: Counts::default(),
        }
    }

    /// The next thing to do. Take them all after each call of another method.
    pub fn next_action(&mut self) -> Option<Action<P>> {
        self.actions.pop_front()
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What the view is worth, once all actions are done.
    #[must_use]
    pub fn health(&self) -> Health {
        match (self.link, self.partial, self.phase) {
            (Link::Never, ..) => Health::Connecting,
            (Link::Down { since }, ..) => Health::Lost { since },
            (Link::Up, Some(reason), _) => Health::Partial { reason },
            (Link::Up, None, Phase::Live) => Health::Live,
            (Link::Up, None, _) => Health::Replaying,
        }
    }

    /// When [`tick`](Self::tick) has something to do, if nothing else happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Millis> {
        match self.phase {
            Phase::Late { until } | Phase::Waiting { until, .. } => Some(until),
            Phase::Replaying { heard, .. } => Some(Millis(heard.0 + SILENCE_MS)),
            Phase::Live => self.retry,
        }
    }

    /// The publisher is connected (or may connect, where we bind). What was missed before is asked for.
    pub fn connected(&mut self, now: Millis) {
        self.link = Link::Up;
        if self.replays {
            self.ask(Want::Rest, now);
        } else if !self.begun {
            self.set_partial(NO_REPLAY);
        }
    }

    /// The connection is gone.
    pub fn disconnected(&mut self, now: Millis) {
        if self.link == Link::Up {
            self.link = Link::Down { since: now };
        }
        if matches!(self.phase, Phase::Replaying { .. }) {
            self.actions.push_back(Action::StopReplay);
        }
        self.phase = Phase::Live;
        self.retry = None;
        self.fruitless = 0;
        self.let_go();
    }

    /// A published message came.
    pub fn message(&mut self, message: Message<P>, now: Millis) {
        match self.phase {
            Phase::Live => self.take(message, false, now),
            Phase::Late { .. } if message.sequence == self.next => {
                self.apply(message);
                self.go_on(false, now);
            }
            _ => self.hold(message),
        }
    }

    /// The replay answered with a message.
    pub fn replayed(&mut self, message: Message<P>, now: Millis) {
        let Phase::Replaying { mut want, answered, .. } = self.phase else { return };
        let first = !answered;
        if first && want == Want::Rest {
            let last = self.next - 1;
            if message.sequence < last || message.sequence == last && self.known(last) != Some(message.print)
            {
                return self.anew(now);
            }
            if message.sequence > last {
                // It has forgotten the proof, and with it what was missing.
                want = Want::All;
            }
        }
        self.phase = Phase::Replaying { want, heard: now, answered: true };
        if first && want == Want::All {
            self.reset("replay");
            self.next = message.sequence;
            match message.sequence {
                0 => self.partial = None,
                _ => self.set_partial("short replay"),
            }
        }
        match message.sequence {
            sequence if sequence == self.next => self.apply(message),
            sequence if sequence > self.next => {
                // The replay itself lost some.
                self.actions.push_back(Action::StopReplay);
                self.ask(Want::Rest, now);
            }
            _ => {}
        }
    }

    /// The replay said that this was all.
    pub fn replay_ended(&mut self, now: Millis) {
        let Phase::Replaying { want, answered, .. } = self.phase else { return };
        match (want, answered) {
            // Nothing at all, not even what we know of: another publisher.
            (Want::Rest, false) => return self.anew(now),
            (Want::All, false) => {
                self.reset("replay");
                self.partial = None;
            }
            _ => {}
        }
        self.failures = 0;
        self.retry = None;
        if !self.fruitful {
            self.fruitless += 1;
        }
        self.go_on(true, now);
    }

    /// The replay socket cannot be reached, or says what nobody understands.
    pub fn replay_failed(&mut self, now: Millis) {
        let Phase::Replaying { want, .. } = self.phase else { return };
        self.counts.failed_replays += 1;
        self.failures += 1;
        let pause = (100 << self.failures.min(10)).min(RETRY_MS);
        self.not_before = Millis(now.0 + pause);
        self.retry = Some(self.not_before);
        if want == Want::Rest {
            self.reset(NO_REPLAY);
        }
        self.set_partial(NO_REPLAY);
        self.go_on(false, now);
    }

    /// What came of an [`Action::Apply`]. Call it after each of them, in their order.
    pub fn done(&mut self, message: &Message<P>, outcome: Outcome) {
        // The view may have been emptied, or found wanting, behind this message already.
        match outcome {
            Outcome::Cleared if message.ordinal > self.partial_at => {
                (self.partial, self.retry) = (None, None)
            }
            Outcome::Unreadable if message.ordinal > self.reset_at => {
                self.partial = Some("unreadable");
                self.partial_at = message.ordinal;
            }
            _ => {}
        }
    }

    /// The view was found to be wrong: asks for everything again, unless something is asked for already.
    pub fn resync(&mut self, now: Millis) {
        if self.replays && self.link == Link::Up && self.phase == Phase::Live {
            self.ask(Want::All, now);
        }
    }

    /// Does what is due at `now`.
    pub fn tick(&mut self, now: Millis) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        match self.phase {
            Phase::Live => {
                self.retry = None;
                self.ask(Want::All, now);
            }
            Phase::Late { .. } => {
                self.reset("gap");
                self.set_partial("gap");
                self.go_on(false, now);
            }
            Phase::Waiting { want, .. } => self.ask(want, now),
            Phase::Replaying { .. } => {
                self.actions.push_back(Action::StopReplay);
                self.replay_failed(now);
            }
        }
    }

    /// Takes a message while nothing else is going on. `proven`: a replay has just shown that this is the publisher we know.
    fn take(&mut self, message: Message<P>, proven: bool, now: Millis) {
        let sequence = message.sequence;
        if !self.begun
            && sequence > 0
            && self.replays
            && self.partial.is_none()
            && self.fruitless <= FRUITLESS
        {
            // There was nothing to replay at the start, and the first messages were lost since.
            self.counts.gaps += 1;
            self.hold(message);
            return self.ask(Want::All, now);
        }
        if !self.begun {
            match (sequence, self.partial) {
                (0, _) => (self.partial, self.retry) = (None, None),
                (_, reason) => self.set_partial(reason.unwrap_or("late start")),
            }
            self.next = sequence;
        }
        if sequence == self.next {
            return self.apply(message);
        }
        let newer = message.ts > self.newest_ts;
        if sequence > self.next && proven && (!newer || self.fruitless > FRUITLESS) {
            self.counts.strays += 1;
            return;
        }
        if sequence > self.next {
            self.counts.gaps += 1;
            self.hold(message);
            match self.replays {
                true => self.ask(Want::Rest, now),
                false => self.phase = Phase::Late { until: Millis(now.0 + GRACE_MS) },
            }
            return;
        }
        match self.known(sequence) {
            Some(print) if print == message.print => self.counts.duplicates += 1,
            Some(_) => self.restarted(message, now),
            None if newer => self.restarted(message, now),
            // Given up as lost, or settled by the replay: too late.
            None if proven || sequence.saturating_add(RECENT as u64) >= self.next => {
                self.counts.duplicates += 1
            }
            None if self.replays => {
                self.hold(message);
                self.ask(Want::Rest, now);
            }
            None => self.restarted(message, now),
        }
    }

    /// `message` is of a publisher that began anew.
    fn restarted(&mut self, message: Message<P>, now: Millis) {
        if self.replays {
            self.hold(message);
            self.anew(now);
        } else {
            self.counts.restarts += 1;
            self.reset("restart");
            self.partial = None;
            self.take(message, false, now);
        }
    }

    /// The publisher began anew: the view is worth nothing.
    fn anew(&mut self, now: Millis) {
        self.counts.restarts += 1;
        if matches!(self.phase, Phase::Replaying { .. }) {
            self.actions.push_back(Action::StopReplay);
        }
        self.reset("restart");
        self.partial = None;
        self.ask(Want::All, now);
    }

    /// Forgets everything about the publisher, and the view with it.
    fn reset(&mut self, reason: &'static str) {
        if std::mem::replace(&mut self.filled, false) {
            self.actions.push_back(Action::Reset(reason));
        }
        self.reset_at = self.applied;
        self.begun = false;
        self.next = 0;
        self.newest_ts = f64::NEG_INFINITY;
        self.recent.fill(None);
    }

    fn apply(&mut self, message: Message<P>) {
        let slot = message.sequence as usize % RECENT;
        self.recent[slot] = Some((message.sequence, message.print));
        self.next = message.sequence.saturating_add(1);
        self.newest_ts = self.newest_ts.max(message.ts);
        (self.begun, self.filled) = (true, true);
        (self.fruitful, self.fruitless) = (true, 0);
        self.applied += 1;
        self.actions.push_back(Action::Apply(Message { ordinal: self.applied, ..message }));
    }

    fn set_partial(&mut self, reason: &'static str) {
        (self.partial, self.partial_at) = (Some(reason), self.applied);
    }

    /// The print of a message that was applied lately.
    fn known(&self, sequence: u64) -> Option<u64> {
        self.recent[sequence as usize % RECENT]
            .and_then(|(number, print)| (number == sequence).then_some(print))
    }

    fn ask(&mut self, want: Want, now: Millis) {
        // Before the first message there is no proof to ask for; and what was given up for lost comes with everything only.
        let want = if self.begun && self.partial != Some(NO_REPLAY) { want } else { Want::All };
        if now < self.not_before {
            self.phase = Phase::Waiting { want, until: self.not_before };
            return;
        }
        self.spacing = match self.asked {
            Some(asked) if now.0 < asked.0 + 1_000 + (SPACING_MS << self.spacing) => {
                (self.spacing + 1).min(6)
            }
            _ => 0,
        };
        self.asked = Some(now);
        self.not_before = Millis(now.0 + (SPACING_MS << self.spacing));
        self.counts.replays += 1;
        self.fruitful = false;
        self.phase = Phase::Replaying { want, heard: now, answered: false };
        let from = if want == Want::Rest { self.next - 1 } else { 0 };
        self.actions.push_back(Action::Replay { from });
    }

    fn hold(&mut self, message: Message<P>) {
        if self.held.len() == HELD_MESSAGES || self.held_bytes + message.bytes > HELD_BYTES {
            // The next message shows a gap, and what is thrown away here is asked for.
            self.let_go();
            self.counts.overflows += 1;
        }
        self.held_bytes += message.bytes;
        self.held.push_back(message);
    }

    fn let_go(&mut self) {
        self.held = VecDeque::new();
        self.held_bytes = 0;
    }

    /// Nothing is waited for any more: takes what was held, in the order in which it was published.
    fn go_on(&mut self, proven: bool, now: Millis) {
        self.phase = Phase::Live;
        let mut held = Vec::from(std::mem::take(&mut self.held));
        self.held_bytes = 0;
        held.sort_by(|a, b| a.ts.total_cmp(&b.ts).then(a.sequence.cmp(&b.sequence)));
        for message in held {
            match self.phase {
                Phase::Live => self.take(message, proven, now),
                _ => self.hold(message),
            }
        }
    }
}
