//! A conversation as seen by a shift: the range and length of each message, and the choice of
//! messages to drop.

use std::ops::Range;

use penstock_api::Operation;
use serde_json::value::RawValue;

use super::items::{Author, ShiftItem, units_of};
use super::{Shift, cut_items};
use crate::json::Fields;

/// The estimated tokens of an image or a file in a message: about what vision models count. Its
/// base64 text is thousands of times longer than its tokens.
const FILE_TOKENS: usize = 768;
/// The length from which a string without a space counts as an encoded file.
const ENCODED_LENGTH: usize = 2048;
/// The number of text bytes per estimated token.
const TOKEN_BYTES: usize = 4;
/// The inverse of two shares of the target. The user's words that started a turn stay without the
/// rest of their turn if they are at most this share, and if dropping them would leave more than
/// this share unused.
const SPARED_SHARE: u64 = 4;

/// The members that only have a meaning with tools.
pub(crate) const TOOL_MEMBERS: &[&str] =
    &["tools", "tool_choice", "parallel_tool_calls", "functions", "function_call"];

#[derive(Debug)]
struct ShiftMessage {
    range: Range<usize>,
    tokens: usize,
    author: Author,
    /// The first of the messages that stay or go together.
    unit: usize,
}

/// A conversation as seen by a shift.
#[derive(Debug)]
pub struct ShiftConversation {
    messages: Vec<ShiftMessage>,
    /// The members of the body, from the start of their names to the end of their values, each with
    /// a flag that is set for members about tools.
    members: Vec<(bool, Range<usize>)>,
    /// The estimated tokens of instructions outside the messages.
    instructions: usize,
    /// The estimated tokens of the tools.
    tools: usize,
}

impl ShiftConversation {
    /// Reads the body of a request. Returns `None` for operations without messages, for bodies that
    /// are not what their API describes, and for requests that forbid shortening (`truncate` or
    /// `shift` false, `truncation` disabled).
    pub fn read(operation: Operation, body: &[u8]) -> Option<Self> {
        let list = operation.row().messages_member()?;
        let fields = Fields::of_body(body).ok()?;
        let mut conversation =
            Self { messages: Vec::new(), members: Vec::new(), instructions: 0, tools: 0 };
        let mut end = body.iter().position(|byte| *byte == b'{')?;
        for (name, value) in fields.iter() {
            let range = range_in(body, value)?;
            // The first quote behind the value before it opens the name of this member.
            let start = end + body.get(end..range.start)?.iter().position(|byte| *byte == b'"')?;
            end = range.end;
            let is_tool = TOOL_MEMBERS.contains(&name);
            conversation.members.push((is_tool, start..end));
            if name == list {
                conversation.read_list(operation, body, value)?;
            } else if is_tool {
                conversation.tools += tokens_of(value.get());
            } else if matches!(name, "system" | "instructions") {
                conversation.instructions += tokens_of(value.get());
            } else if forbids_shift(name, value.get()) {
                return None;
            }
        }
        Some(conversation)
    }

    fn read_list(&mut self, operation: Operation, body: &[u8], list: &RawValue) -> Option<()> {
        let items: Vec<&RawValue> = serde_json::from_str(list.get()).ok()?;
        let read: Option<Vec<_>> =
            items.iter().map(|item| ShiftItem::read(operation, item)).collect();
        let units = units_of(&read?);
        // Of two lists with one name the last counts.
        self.messages.clear();
        for (raw, (author, unit)) in items.into_iter().zip(units) {
            let range = range_in(body, raw)?;
            self.messages.push(ShiftMessage { range, tokens: tokens_of(raw.get()), author, unit });
        }
        Some(())
    }

    /// Returns the estimated tokens of the prompt. Only ratios of estimates matter: an engine's own
    /// count sets the scale.
    pub fn tokens(&self) -> u64 {
        let messages: usize = self.messages.iter().map(|message| message.tokens).sum();
        (messages + self.instructions + self.tools) as u64
    }

    /// Scales `target` from a prompt of `estimated` tokens to this conversation's own estimate.
    pub fn share(&self, target: u64, estimated: u32) -> u64 {
        self.tokens().saturating_mul(target) / u64::from(estimated.max(1))
    }

    /// Returns whether it offers tools.
    fn has_tools(&self) -> bool {
        self.members.iter().any(|(is_tool, _)| *is_tool)
    }

    /// Drops the oldest messages until at most `target` estimated tokens remain, or nothing more
    /// may be dropped. Instructions, the user's last message and the last message of all stay, and
    /// so do tool calls whose results stay. The first remaining message is one of the user. If
    /// `without_tools`, the tools are dropped first. Returns `None` if there is nothing to drop.
    pub fn shift(&self, target: u64, without_tools: bool) -> Option<Shift> {
        let drops_tools = without_tools && self.has_tools();
        let mut tokens = self.tokens();
        if drops_tools {
            tokens = tokens.saturating_sub(self.tools as u64);
        }
        let is_dropped = self.choose(tokens, target);
        let dropped = is_dropped.iter().filter(|dropped| **dropped).count();
        if dropped == 0 && !drops_tools {
            return None;
        }
        let ranges: Vec<_> = self.messages.iter().map(|message| message.range.clone()).collect();
        let mut cuts = cut_items(&ranges, |index| is_dropped.get(index) == Some(&true));
        if drops_tools {
            let members: Vec<_> = self.members.iter().map(|(_, range)| range.clone()).collect();
            let is_tool = |index| self.members.get(index).is_some_and(|(is_tool, _)| *is_tool);
            cuts.extend(cut_items(&members, is_tool));
            // Members lie before and behind the messages, and `apply` needs ascending cuts.
            cuts.sort_by_key(|cut| cut.start);
        }
        Some(Shift { cuts, dropped: u32::try_from(dropped).unwrap_or(u32::MAX) })
    }

    /// Returns which messages are dropped: turn by turn, the words of the user after the rest of
    /// their turn.
    fn choose(&self, tokens: u64, target: u64) -> Vec<bool> {
        let unit_stays = self.units_that_stay();
        let is_dropped = vec![false; self.messages.len()];
        let messages = &self.messages;
        let mut dropping = Dropping { messages, units: self.units(), is_dropped, left: tokens };
        let least = target.saturating_sub(target / SPARED_SHARE);
        'turns: for turn in self.turns(&unit_stays) {
            for unit in &turn.units {
                if dropping.left <= target {
                    break 'turns;
                }
                dropping.drop_unit(*unit);
            }
            // Enough is dropped, and this turn is nothing but the words of the user.
            if turn.units.is_empty() && dropping.left <= target {
                break;
            }
            let Some(user) = turn.user.filter(|_| !turn.stays) else { continue };
            // Alone, the words would directly precede the user's next ones, which some templates
            // refuse. They stay if dropping them would cut far more than necessary.
            let size = messages.get(user).map_or(0, |message| message.tokens as u64);
            let is_small = size <= target / SPARED_SHARE;
            let is_spared = is_small && dropping.left.saturating_sub(size) < least;
            if dropping.left > target || !is_spared {
                dropping.drop_unit(user);
            }
        }
        if dropping.left < tokens {
            dropping.drop_leading(&unit_stays);
        }
        dropping.is_dropped
    }

    /// Returns the turns of the conversation, with the units that may be dropped.
    fn turns(&self, unit_stays: &[bool]) -> Vec<ShiftTurn> {
        let mut turns: Vec<ShiftTurn> = Vec::new();
        for (index, message) in self.messages.iter().enumerate() {
            let stays = unit_stays.get(message.unit) != Some(&false);
            match message.author {
                Author::System => {}
                Author::User => {
                    let user = (!stays).then_some(message.unit);
                    turns.push(ShiftTurn { user, ..ShiftTurn::default() });
                }
                Author::Other => {
                    if turns.is_empty() {
                        turns.push(ShiftTurn::default());
                    }
                    let Some(turn) = turns.last_mut() else { continue };
                    turn.stays |= stays;
                    if !stays && message.unit == index {
                        turn.units.push(index);
                    }
                }
            }
        }
        turns
    }

    /// Returns whether each unit must stay, by the number of its first message. Numbers of other
    /// messages denote no unit, and stay too.
    fn units_that_stay(&self) -> Vec<bool> {
        let mut stays = vec![true; self.messages.len()];
        for (index, message) in self.messages.iter().enumerate() {
            if message.unit == index
                && let Some(stay) = stays.get_mut(index)
            {
                *stay = false;
            }
        }
        let last_user = self.messages.iter().rposition(|message| message.author == Author::User);
        let last = self.messages.len().checked_sub(1);
        for (index, message) in self.messages.iter().enumerate() {
            let must_stay =
                message.author == Author::System || Some(index) == last_user || Some(index) == last;
            if must_stay && let Some(stay) = stays.get_mut(message.unit) {
                *stay = true;
            }
        }
        stays
    }

    /// Returns the messages of each unit, by the number of its first one.
    fn units(&self) -> Vec<Vec<usize>> {
        let mut units = vec![Vec::new(); self.messages.len()];
        for (index, message) in self.messages.iter().enumerate() {
            if let Some(unit) = units.get_mut(message.unit) {
                unit.push(index);
            }
        }
        units
    }
}

/// The words of the user and the messages after them.
#[derive(Debug, Default)]
struct ShiftTurn {
    /// The unit of the words, if it may be dropped.
    user: Option<usize>,
    /// The later units that may be dropped.
    units: Vec<usize>,
    /// True if a later unit must stay.
    stays: bool,
}

/// The state of dropping messages.
struct Dropping<'c> {
    messages: &'c [ShiftMessage],
    /// The messages of each remaining unit, by the number of its first one.
    units: Vec<Vec<usize>>,
    is_dropped: Vec<bool>,
    /// The number of remaining tokens.
    left: u64,
}

impl Dropping<'_> {
    fn drop_unit(&mut self, unit: usize) {
        for index in self.units.get_mut(unit).map(std::mem::take).unwrap_or_default() {
            let message = self.messages.get(index);
            if let (Some(message), Some(dropped)) = (message, self.is_dropped.get_mut(index)) {
                *dropped = true;
                self.left = self.left.saturating_sub(message.tokens as u64);
            }
        }
    }

    /// Drops units before the first message of the user, which most templates refuse.
    fn drop_leading(&mut self, unit_stays: &[bool]) {
        for (index, message) in self.messages.iter().enumerate() {
            if message.author == Author::System || self.is_dropped.get(index) == Some(&true) {
                continue;
            }
            let stays = unit_stays.get(message.unit) != Some(&false);
            if message.author == Author::User || stays {
                return;
            }
            self.drop_unit(message.unit);
        }
    }
}

/// Returns whether a member forbids shortening the request.
fn forbids_shift(name: &str, value: &str) -> bool {
    matches!((name, value), ("truncate" | "shift", "false") | ("truncation", "\"disabled\""))
}

/// Returns the range of a value in the body that it was read from.
pub(crate) fn range_in(body: &[u8], value: &RawValue) -> Option<Range<usize>> {
    let text = value.get();
    // A value borrows from the body, so its address is its place: nothing is parsed twice.
    let start = text.as_ptr().addr().checked_sub(body.as_ptr().addr())?;
    let range = start..start + text.len();
    debug_assert_eq!(body.get(range.clone()), Some(text.as_bytes()), "values borrow from the body");
    body.get(range.clone()).map(|_| range)
}

/// Returns the estimated tokens of a JSON value.
fn tokens_of(json: &str) -> usize {
    let mut encoded = (0, 0);
    let bytes = json.as_bytes();
    let mut at = 0;
    // Strings are read separately: quotes never occur inside each other.
    while let Some(start) = memchr::memchr(b'"', bytes.get(at..).unwrap_or_default()) {
        let start = at + start + 1;
        let end = start + string_length(bytes.get(start..).unwrap_or_default());
        let head = bytes.get(start..end.min(start + ENCODED_LENGTH)).unwrap_or_default();
        if end - start >= ENCODED_LENGTH && head.iter().all(|byte| byte.is_ascii_graphic()) {
            encoded = (encoded.0 + 1, encoded.1 + end - start);
        }
        at = end + 1;
    }
    let (files, bytes) = encoded;
    (json.len() - bytes).div_ceil(TOKEN_BYTES) + files * FILE_TOKENS
}

/// Returns the number of bytes before the quote that ends a string.
fn string_length(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(next) = memchr::memchr2(b'"', b'\\', bytes.get(at..).unwrap_or_default()) {
        at += next;
        if bytes.get(at) == Some(&b'"') {
            return at;
        }
        // The byte behind a backslash cannot end the string.
        at += 2;
    }
    bytes.len()
}
