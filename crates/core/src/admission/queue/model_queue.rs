//! The queue of one model: the waiting requests, and the one that has the turn.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ahash::HashMap;
use penstock_api::units::Timestamp;
use penstock_config::{QueueConfig, QueueOrder};

use super::class::QueueEntry;
use super::line::Line;
use super::{Charge, Cost, EntryId, Joined, Newcomer, PassedTurn, QueueEnd, QueueFull};
use crate::fleet::BackendSet;

/// The most lines. Requests for further sets of backends share the last line, where the first
/// request may hold up the others.
// No more than `tried` has bits.
const MAX_LINES: usize = 16;
/// The most owners that may be held back per signal: each of them has decided in vain.
const MAX_HELD_BACK: usize = 16;
/// A queue that has not been empty for this long is standing: requests arrive faster than they are
/// served.
const STANDING: Duration = Duration::from_secs(1);

/// The configuration of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueRules {
    /// The most requests that wait.
    pub size: usize,
    /// If set, the newest requests without an objective come first while requests arrive faster
    /// than they are served.
    pub newest_first: bool,
}

impl QueueRules {
    /// The rules of a configuration.
    pub fn new(config: &QueueConfig) -> Self {
        let newest_first = config.order == QueueOrder::NewestUnderOverload;
        Self { size: config.size, newest_first }
    }
}

/// An instruction for a waiting request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Decide,
    /// End: another request has its place. It no longer waits.
    Displaced,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TurnState {
    Waiting,
    HasTurn,
    Displaced,
}

/// A request in the queue.
#[derive(Debug)]
struct QueuedRequest {
    entry: QueueEntry,
    priority: i32,
    line: usize,
    state: TurnState,
    /// True if it found room that was kept for others.
    is_held_back: bool,
    waker: Option<Waker>,
}

impl QueuedRequest {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

#[derive(Debug, Default)]
pub struct ModelQueue {
    slots: HashMap<EntryId, QueuedRequest>,
    /// The number of waiting requests. Displaced ones no longer count, though they have not left
    /// yet.
    len: usize,
    lines: Vec<Line>,
    turn: Option<EntryId>,
    /// The lines that have tried since the last signal, as bits.
    tried: u32,
    /// The owners that were held back since the last signal, because the room is kept for others.
    held_back: Vec<u64>,
    /// The number of requests that were held back at least once.
    held_back_count: u64,
    /// True if a signal came while a request had the turn.
    is_signalled: bool,
    newest_first: bool,
    next: u64,
    standing_since: Option<Timestamp>,
    ended: [u64; QueueEnd::ALL.len()],
}

impl ModelQueue {
    #[cfg(test)]
    pub(super) fn idle_owners(&self) -> usize {
        self.lines.iter().map(Line::idle_owners).sum()
    }

    /// The number of waiting requests.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The request that has the turn.
    pub fn turn(&self) -> Option<EntryId> {
        self.turn
    }

    /// The number of requests by [`QueueEnd`], in the order of [`QueueEnd::ALL`].
    pub fn ended(&self) -> [u64; QueueEnd::ALL.len()] {
        self.ended
    }

    /// The number of requests that found room which was kept for others.
    pub fn held_back(&self) -> u64 {
        self.held_back_count
    }

    /// Adds a request behind those of its kind. If the queue is full, evicts the lowest-priority
    /// request if its priority is lower, else one of an owner with more requests there.
    ///
    /// # Errors
    /// If the queue is full of requests of this priority or a higher one, and no owner there has
    /// more requests than its own.
    pub fn join(
        &mut self,
        newcomer: &Newcomer,
        rules: QueueRules,
        now: Timestamp,
    ) -> Result<Joined, QueueFull> {
        self.newest_first = rules.newest_first;
        let mut displaced = None;
        if self.len >= rules.size {
            displaced = self.displace(newcomer);
            if displaced.is_none() {
                self.count(QueueEnd::Full);
                return Err(QueueFull);
            }
        }
        self.standing_since.get_or_insert(now);
        self.next += 1;
        let id = EntryId(self.next);
        let Newcomer { backends, priority, owner, weight, due, until } = *newcomer;
        // The deadline is the earlier of both: after the end of its wait an objective is void.
        let entry = QueueEntry { id, owner, weight, due: due.filter(|due| *due < until), until };
        let line = self.line_of(backends);
        let (state, is_held_back, waker) = (TurnState::Waiting, false, None);
        let slot = QueuedRequest { entry, priority, line, state, is_held_back, waker };
        if let Some(line) = self.lines.get_mut(line) {
            line.push(priority, &entry);
        }
        self.slots.insert(id, slot);
        self.len += 1;
        // Its backends may have room although the requests of other lines wait.
        self.signal(now);
        Ok(Joined { id, displaced })
    }

    /// Returns `Ready` once the request has something to do.
    pub fn poll(&mut self, id: EntryId, cx: &Context<'_>) -> Poll<Turn> {
        let Some(slot) = self.slots.get_mut(&id) else {
            debug_assert!(false, "a request waits until it leaves");
            return Poll::Ready(Turn::Decide);
        };
        match slot.state {
            TurnState::HasTurn => Poll::Ready(Turn::Decide),
            TurnState::Displaced => Poll::Ready(Turn::Displaced),
            TurnState::Waiting => {
                slot.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Gives the first request the turn, because something may have become free.
    pub fn signal(&mut self, now: Timestamp) {
        match self.turn {
            Some(_) => self.is_signalled = true,
            None => self.try_all(now),
        }
    }

    fn try_all(&mut self, now: Timestamp) {
        self.tried = 0;
        self.held_back.clear();
        self.give_turn(now);
    }

    /// Ends the turn of a request that found no room, as `passed` says. It keeps its place. If
    /// there is room that is kept for others, the next owner of its line tries.
    pub fn pass(&mut self, id: EntryId, passed: PassedTurn, now: Timestamp) {
        let PassedTurn { backends, is_held_back } = passed;
        let found = self.slots.get(&id).filter(|slot| slot.state == TurnState::HasTurn);
        let Some(slot) = found else { return };
        let (entry, priority, before) = (slot.entry, slot.priority, slot.line);
        let is_same = self.lines.get(before).is_some_and(|line| line.backends == backends);
        // The backends that can take it may have changed since it joined: it moves to their line.
        if !is_same && let Some(line) = self.lines.get_mut(before) {
            line.remove(priority, &entry);
        }
        // After the removal: the line that it leaves may be empty, and is then reused.
        let line = if is_same { before } else { self.line_of(backends) };
        if !is_same && let Some(line) = self.lines.get_mut(line) {
            line.push(priority, &entry);
        }
        if let Some(slot) = self.slots.get_mut(&id) {
            (slot.line, slot.state) = (line, TurnState::Waiting);
            if is_held_back && !std::mem::replace(&mut slot.is_held_back, true) {
                self.held_back_count += 1;
            }
        }
        // The room is kept for others, so the line is not done: the next owner in it may take that
        // room.
        if is_held_back && self.held_back.len() < MAX_HELD_BACK {
            self.held_back.push(entry.owner);
        } else {
            self.tried |= bit(line);
        }
        self.turn = None;
        self.give_turn(now);
    }

    /// Takes the request out of the queue for a backend; `cost` is expected. `None` for a request
    /// that does not wait.
    pub fn serve(&mut self, id: EntryId, cost: Cost, now: Timestamp) -> Option<Charge> {
        let slot = self.slots.get(&id);
        let charge = slot.map(|slot| {
            let QueuedRequest { entry: QueueEntry { owner, weight, .. }, priority, line, .. } =
                *slot;
            Charge { cost, owner, weight, priority, line }
        });
        if let Some(charge) = &charge
            && let Some(line) = self.lines.get_mut(charge.line)
        {
            line.charge(charge);
        }
        self.leave(id, QueueEnd::Served, now);
        charge
    }

    /// Replaces the expected cost of a served request that has ended by its actual `cost`.
    pub fn settle(&mut self, charge: &Charge, cost: Cost) {
        // Another line may be at that index now: the owner's requests there cost tokens as well.
        if let Some(line) = self.lines.get_mut(charge.line) {
            line.settle(charge, cost);
        }
    }

    /// Removes a request that no longer waits.
    pub fn leave(&mut self, id: EntryId, end: QueueEnd, now: Timestamp) {
        let Some(slot) = self.slots.remove(&id) else { return };
        if slot.state == TurnState::Displaced {
            // Its place went to another request when it was evicted.
            self.count(QueueEnd::Displaced);
            return;
        }
        self.count(end);
        if let Some(line) = self.lines.get_mut(slot.line) {
            line.remove(slot.priority, &slot.entry);
        }
        self.len -= 1;
        if self.len == 0 {
            self.standing_since = None;
        }
        // Otherwise no request would ever have the turn again: a signal waits for the end of a
        // turn.
        if self.turn == Some(id) {
            self.turn = None;
            self.give_turn(now);
        }
    }

    fn count(&mut self, end: QueueEnd) {
        let position = QueueEnd::ALL.iter().position(|one| *one == end);
        if let Some(count) = position.and_then(|position| self.ended.get_mut(position)) {
            *count += 1;
        }
    }

    /// Evicts the lowest-priority request for `newcomer` if its priority is lower, else one of an
    /// owner with more requests there.
    fn displace(&mut self, newcomer: &Newcomer) -> Option<EntryId> {
        // The request that has the turn may be about to leave.
        let may_leave = |id: &EntryId| self.turn != Some(*id);
        let last = self.lines.iter().filter_map(|line| line.last(may_leave)).min();
        let last = last.filter(|(least, _)| *least < newcomer.priority).map(|(_, id)| id);
        let of_most = || {
            let mut found = self.lines.iter().filter_map(|line| line.last_of_most(newcomer));
            found.find(may_leave)
        };
        let id = last.or_else(of_most)?;
        let slot = self.slots.get_mut(&id)?;
        slot.state = TurnState::Displaced;
        slot.wake();
        let (entry, priority, line) = (slot.entry, slot.priority, slot.line);
        if let Some(line) = self.lines.get_mut(line) {
            line.remove(priority, &entry);
        }
        self.len -= 1;
        Some(id)
    }

    /// The line of requests that `backends` can take.
    fn line_of(&mut self, backends: BackendSet) -> usize {
        let known = self.lines.iter().position(|line| line.backends == backends);
        if let Some(known) = known {
            return known;
        }
        if let Some((place, line)) =
            self.lines.iter_mut().enumerate().find(|(_, line)| line.is_empty())
        {
            *line = Line::new(backends);
            return place;
        }
        if self.lines.len() < MAX_LINES {
            self.lines.push(Line::new(backends));
        } else if let Some(last) = self.lines.last_mut() {
            last.backends.insert_all(&backends);
        }
        self.lines.len() - 1
    }

    /// Gives the turn to the first request of the lines that have not tried.
    fn give_turn(&mut self, now: Timestamp) {
        debug_assert!(self.turn.is_none(), "one request at a time decides");
        let is_standing = self.standing_since.is_some_and(|since| now.since(since) >= STANDING);
        let newest_first = self.newest_first && is_standing;
        let mut best: Option<(i32, EntryId)> = None;
        for (number, line) in self.lines.iter_mut().enumerate() {
            if self.tried & bit(number) != 0 {
                continue;
            }
            let Some(first) = line.first(now, newest_first, &self.held_back) else { continue };
            // At equal priority the earliest request comes first.
            if best.is_none_or(|best| (-first.0, first.1) < (-best.0, best.1)) {
                best = Some(first);
            }
        }
        match best {
            Some((_, id)) => {
                self.turn = Some(id);
                if let Some(slot) = self.slots.get_mut(&id) {
                    slot.state = TurnState::HasTurn;
                    slot.wake();
                }
            }
            // The signal came during a turn: lines that had already tried may find room now.
            None if std::mem::take(&mut self.is_signalled) => self.try_all(now),
            None => {}
        }
    }
}

fn bit(line: usize) -> u32 {
    u32::try_from(line).map_or(0, |line| 1 << line.min(31))
}
