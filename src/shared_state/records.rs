//! Records that several penstocks keep, each in its own file: the server has the newest version of
//! each, from whichever penstock it came. A final record stays, whatever comes later. Records are
//! merged, and no order of their arrival matters: the server may lose them, and gets them again.

use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic::Ordering as Relaxation;

use ahash::HashMap;
use penstock_config::{KeyHash, UnixTime};

use super::SharedState;
use super::link::{Link, RedisScript};

/// The most records that are sent or returned at one time.
const MAX_PAGE: usize = 128;
/// The longest text of a record, in bytes.
const MAX_TEXT: usize = 64 << 10;

/// A record as penstocks share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedRecord {
    pub id: String,
    /// True if no later version counts.
    pub is_final: bool,
    pub version: u64,
    /// The time after which the server forgets the record; `None` if it is kept for good.
    pub ends_at: Option<UnixTime>,
    pub text: String,
}

/// The age of a record. Of two with the same version, which two penstocks made at the same time,
/// one is the newer for everybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Age {
    is_final: bool,
    version: u64,
    tie: u64,
}

impl SharedRecord {
    fn age(&self) -> Age {
        let digest = KeyHash::of(self.text.as_bytes());
        let [first, second, third, fourth, fifth, sixth, ..] = *digest.as_bytes();
        // 48 bits: scripts count by floating-point numbers.
        let tie = u64::from_be_bytes([0, 0, first, second, third, fourth, fifth, sixth]);
        Age { is_final: self.is_final, version: self.version, tie }
    }

    /// Returns whether the record takes the place of another one with its id.
    pub fn is_newer_than(&self, other: &Self) -> bool {
        self.age().cmp(&other.age()) == Ordering::Greater
    }

    fn read(id: &str, held: &str) -> Option<Self> {
        let mut words = held.splitn(4, ' ');
        let (is_final, version) = (words.next()? == "1", words.next()?.parse().ok()?);
        let text = words.nth(1).filter(|text| text.len() <= MAX_TEXT)?;
        // Only who sends a record says when it ends.
        Some(Self { id: id.to_owned(), is_final, version, ends_at: None, text: text.to_owned() })
    }
}

/// The exchange of the records of one kind with the server.
#[derive(Debug)]
pub struct RecordExchange {
    shared: Arc<SharedState>,
    keys: [String; 4],
    /// The age of each record as the server has it.
    known: HashMap<String, Age>,
    /// The identity of what the server has, and the number of its changes that are known.
    identity: String,
    changes: String,
}

impl RecordExchange {
    /// Returns an exchange of records of a kind.
    pub fn new(shared: Arc<SharedState>, kind: &str) -> Self {
        let prefix = &shared.config.prefix;
        let keys =
            ["all", "changes", "state", "ends"].map(|name| format!("{prefix}:{kind}:{name}"));
        let known = HashMap::default();
        Self { shared, keys, known, identity: String::new(), changes: "0".to_owned() }
    }

    /// Returns whether the server has a record, or a newer one, as far as is known, or needs it no
    /// more.
    pub fn has(&self, record: &SharedRecord) -> bool {
        record.ends_at.is_some_and(|at| at.0 < penstock_clock::unix_seconds())
            || self.known.get(&record.id).is_some_and(|known| *known >= record.age())
    }

    /// Forgets what the server has besides newer versions of some records.
    pub fn forget_others(&mut self, records: &[SharedRecord]) {
        let ids: ahash::HashSet<&str> = records.iter().map(|record| &*record.id).collect();
        self.known.retain(|id, _| ids.contains(&**id));
    }

    /// Sends the records that the server lacks, and returns those that have changed there; `None`
    /// while it is not reached. `own`: all records here that the server may lack.
    pub async fn exchange(&mut self, own: &[SharedRecord]) -> Option<Vec<SharedRecord>> {
        let link = self.shared.link.load_full()?;
        let mut changed = Vec::new();
        // Read first: what others have made since may be newer than what is here.
        let mut before = String::new();
        while before != self.changes {
            before.clone_from(&self.changes);
            self.call(&link, &[], &mut changed).await?;
        }
        let mut lacking: Vec<&SharedRecord> = own.iter().filter(|one| !self.has(one)).collect();
        lacking.retain(|record| record.text.len() <= MAX_TEXT);
        for page in lacking.chunks(MAX_PAGE) {
            self.call(&link, page, &mut changed).await?;
        }
        Some(changed)
    }

    /// The identity of what the server has; another one once the server has lost it.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Forgets what is known: everything is read and sent again.
    pub fn forget(&mut self) {
        self.identity.clear();
    }

    async fn call(
        &mut self,
        link: &Arc<Link>,
        sent: &[&SharedRecord],
        changed: &mut Vec<SharedRecord>,
    ) -> Option<()> {
        // A server may lose what it has twice within one second.
        let now = penstock_clock::unix_time().as_nanos();
        let fresh = format!("{}-{now}", self.shared.instance);
        let mut arguments =
            vec![fresh, self.identity.clone(), self.changes.clone(), MAX_PAGE.to_string()];
        for record in sent {
            let Age { is_final, version, tie } = record.age();
            let numbers = [u64::from(is_final), version, tie].map(|number| number.to_string());
            arguments.push(record.id.clone());
            arguments.extend(numbers);
            arguments.push(record.ends_at.map_or(0, |at| at.0).to_string());
            arguments.push(record.text.clone());
        }
        let words = match link.run(RedisScript::ExchangeRecords, &self.keys, &arguments).await {
            Ok(words) => words,
            Err(error) => {
                self.shared.note_error(link, &error);
                return None;
            }
        };
        let [identity, changes, records @ ..] = words.as_slice() else { return None };
        if *identity != self.identity {
            // The server has lost what it had: everything is sent again.
            self.known.clear();
            self.identity.clone_from(identity);
        }
        self.changes.clone_from(changes);
        for pair in records.chunks_exact(2) {
            let [id, held] = pair else { continue };
            match SharedRecord::read(id, held) {
                Some(record) => {
                    self.known.insert(id.clone(), record.age());
                    changed.push(record);
                }
                None => {
                    self.shared.errors.fetch_add(1, Relaxation::Relaxed);
                }
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(is_final: bool, version: u64, text: &str) -> SharedRecord {
        let text = text.to_owned();
        SharedRecord { id: "a".to_owned(), is_final, version, ends_at: None, text }
    }

    #[test]
    fn final_records_are_newer_than_every_version() {
        let one = record(false, 7, "x");
        assert!(record(false, 8, "a").is_newer_than(&one) && !one.is_newer_than(&one));
        assert!(record(true, 1, "x").is_newer_than(&record(false, 99, "x")));
        assert!(!record(false, 99, "x").is_newer_than(&record(true, 1, "x")));
        let other = record(false, 7, "y");
        assert_ne!(one.is_newer_than(&other), other.is_newer_than(&one), "one of them");
    }

    #[test]
    fn records_are_read_as_they_are_written() {
        let text = r#"{"name": "a b c"}"#;
        let read = SharedRecord::read("a", &format!("1 12 99 {text}")).unwrap();
        assert_eq!(read, record(true, 12, text));
        let long = format!("0 1 2 {}", "x".repeat(MAX_TEXT + 1));
        for wrong in ["", "1", "1 x 2 t", "1 2 3", &long] {
            assert_eq!(SharedRecord::read("a", wrong), None, "{wrong:.20}");
        }
    }
}
