//! DNS messages (RFC 1035, RFC 2782, RFC 6891): queries for one record type, and a reader of
//! responses. Responses come from the network: nothing in them is trusted to be well-formed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The size of UDP responses that is offered: it fits every path without fragments.
// The least MTU of IPv6, 1280 bytes, without 48 bytes of headers (DNS flag day 2020).
pub(super) const UDP_SIZE: u16 = 1232;
/// Names longer than this are malformed.
const MAX_NAME: usize = 255;
/// The largest number of records that are read of one response.
const MAX_RECORDS: u16 = 4096;
const CLASS_INTERNET: u16 = 1;
const TYPE_ALIAS: u16 = 5;
const TYPE_OPTIONS: u16 = 41;
const RECURSION_DESIRED: u16 = 0x0100;
const RESPONSE: u16 = 0x8000;
const TRUNCATED: u16 = 0x0200;
const STATUS: u16 = 0x000f;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordType {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// Addresses and ports of a service.
    Srv,
}

impl RecordType {
    fn code(self) -> u16 {
        match self {
            Self::A => 1,
            Self::Aaaa => 28,
            Self::Srv => 33,
        }
    }
}

/// A question, which its response contains, too.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question<'a> {
    pub(super) id: u16,
    /// The name in lower case, without a dot at its end.
    pub(super) name: &'a str,
    pub(super) record_type: RecordType,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DnsRecord {
    /// The name in lower case, without a dot at its end.
    pub(super) name: String,
    pub(super) data: RecordData,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RecordData {
    Address(IpAddr),
    /// The name has the records of another one.
    Alias(String),
    Service {
        priority: u16,
        weight: u16,
        port: u16,
        target: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DnsResponse {
    /// The response code; 0 is success, 3 an unknown name.
    pub(super) status: u16,
    /// True if it lacks records that did not fit.
    pub(super) is_truncated: bool,
    /// All records but those that point to other servers.
    pub(super) records: Vec<DnsRecord>,
}

impl Question<'_> {
    /// Returns the query; `None` for a name that DNS cannot express.
    pub(super) fn to_query(self) -> Option<Vec<u8>> {
        let mut query = Vec::with_capacity(64);
        // One question, and one additional record for the options.
        for field in [self.id, RECURSION_DESIRED, 1, 0, 0, 1] {
            query.extend_from_slice(&field.to_be_bytes());
        }
        for label in self.name.split('.') {
            // The upper two bits of a length mark a pointer, which leaves 63 (RFC 1035, 4.1.4).
            let length =
                u8::try_from(label.len()).ok().filter(|length| (1..=63).contains(length))?;
            query.push(length);
            query.extend_from_slice(label.as_bytes());
        }
        query.push(0);
        for field in [self.record_type.code(), CLASS_INTERNET] {
            query.extend_from_slice(&field.to_be_bytes());
        }
        // Options: the root name, the type, the size of responses, no flags, no options.
        query.push(0);
        for field in [TYPE_OPTIONS, UDP_SIZE, 0, 0, 0] {
            query.extend_from_slice(&field.to_be_bytes());
        }
        (self.name.len() < MAX_NAME).then_some(query)
    }

    /// Reads the response; `None` if `message` is malformed or responds to another question.
    pub(super) fn read(self, message: &[u8]) -> Option<DnsResponse> {
        let mut reader = MessageReader { message, at: 0 };
        let (id, flags) = (reader.number()?, reader.number()?);
        let (questions, found) = (reader.number()?, reader.number()?);
        let (authorities, additional) = (reader.number()?, reader.number()?);
        let is_mine = id == self.id && flags & RESPONSE != 0;
        let (status, is_truncated) = (flags & STATUS, flags & TRUNCATED != 0);
        // A server that cannot read the question may leave it out.
        if is_mine && questions == 0 && status != 0 {
            return Some(DnsResponse { status, is_truncated, records: Vec::new() });
        }
        let name = reader.name()?;
        let (record_type, class) = (reader.number()?, reader.number()?);
        let is_repeated = questions == 1
            && name == self.name
            && (record_type, class) == (self.record_type.code(), CLASS_INTERNET);
        if !is_mine || !is_repeated {
            return None;
        }
        let mut records = Vec::new();
        let count = found.saturating_add(authorities).saturating_add(additional);
        for index in 0..count.min(MAX_RECORDS) {
            let record = match reader.record() {
                Some(record) => record,
                // A server may cut a truncated response anywhere.
                None if is_truncated => break,
                None => return None,
            };
            let is_of_interest = !(found..found.saturating_add(authorities)).contains(&index);
            records.extend(record.filter(|_| is_of_interest));
        }
        Some(DnsResponse { status, is_truncated, records })
    }
}

impl DnsResponse {
    /// Returns the records of `name`, or of the name that it is an alias of.
    pub(super) fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a RecordData> {
        let mut name = name;
        // Each alias is a record, so that a cycle ends.
        for _ in &self.records {
            let alias = self.records.iter().find_map(|record| match &record.data {
                RecordData::Alias(alias) if record.name == name => Some(alias.as_str()),
                _ => None,
            });
            match alias {
                Some(alias) => name = alias,
                None => break,
            }
        }
        let mine = self.records.iter().filter(move |record| record.name == name);
        mine.map(|record| &record.data)
    }
}

struct MessageReader<'a> {
    message: &'a [u8],
    at: usize,
}

impl<'a> MessageReader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let taken = self.message.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn number(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// Reads a name, whose end may be elsewhere in the message.
    fn name(&mut self) -> Option<String> {
        let mut name = String::new();
        let mut after = None;
        loop {
            let start = self.at;
            let [length] = self.array()?;
            match length {
                0 => break,
                1..=63 => {
                    let label = self.take(usize::from(length))?;
                    if !name.is_empty() {
                        name.push('.');
                    }
                    let label = std::str::from_utf8(label).ok()?;
                    name.push_str(&label.to_ascii_lowercase());
                    if name.len() > MAX_NAME {
                        return None;
                    }
                }
                192..=255 => {
                    let [low] = self.array()?;
                    let to = usize::from(u16::from_be_bytes([length & 0x3f, low]));
                    // The record continues behind the first pointer, wherever the name ends.
                    after.get_or_insert(self.at);
                    // Pointers lead only backwards, so that a cycle ends.
                    if to >= start {
                        return None;
                    }
                    self.at = to;
                }
                64..=191 => return None,
            }
        }
        self.at = after.unwrap_or(self.at);
        Some(name)
    }

    /// Reads a record; `Some(None)` for one of no interest.
    fn record(&mut self) -> Option<Option<DnsRecord>> {
        let name = self.name()?;
        let (record_type, class) = (self.number()?, self.number()?);
        let _time_to_live = self.take(4)?;
        let length = usize::from(self.number()?);
        let end = self.at.checked_add(length).filter(|end| *end <= self.message.len())?;
        let data = match (class, record_type) {
            (CLASS_INTERNET, 1) => Some(RecordData::Address(Ipv4Addr::from(self.array()?).into())),
            (CLASS_INTERNET, 28) => {
                Some(RecordData::Address(Ipv6Addr::from(self.array::<16>()?).into()))
            }
            (CLASS_INTERNET, TYPE_ALIAS) => Some(RecordData::Alias(self.name()?)),
            (CLASS_INTERNET, 33) => Some(RecordData::Service {
                priority: self.number()?,
                weight: self.number()?,
                port: self.number()?,
                target: self.name()?,
            }),
            _ => None,
        };
        // By the length of the record, so that data of unknown types is skipped.
        self.at = end;
        Some(data.map(|data| DnsRecord { name, data }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const QUESTION: Question<'_> =
        Question { id: 7, name: "engines.example", record_type: RecordType::A };

    /// The header of a response with `found` and `additional` records, and the question.
    fn start(flags: u16, found: u16, additional: u16) -> Vec<u8> {
        let mut message = Vec::new();
        for field in [7, RESPONSE | flags, 1, found, 0, additional] {
            message.extend_from_slice(&field.to_be_bytes());
        }
        message.extend_from_slice(b"\x07Engines\x07example\0\0\x01\0\x01");
        message
    }

    fn address(name: &[u8], last: u8) -> Vec<u8> {
        [name, b"\0\x01\0\x01\0\0\0\x05\0\x04\x0a\0\0", &[last]].concat()
    }

    #[test]
    fn query_asks_for_one_type_and_offers_large_responses() {
        let query = QUESTION.to_query().unwrap();
        let expected = b"\0\x07\x01\0\0\x01\0\0\0\0\0\x01\x07engines\x07example\0\0\x01\0\x01\
                         \0\0\x29\x04\xd0\0\0\0\0\0\0";
        assert_eq!(query, expected);
        for name in ["", "a..b", &"a".repeat(64)] {
            assert!(Question { name, ..QUESTION }.to_query().is_none(), "{name}");
        }
    }

    #[test]
    fn addresses_of_a_name_and_of_its_alias_are_read() {
        let pods = [b"\xc0\x0c", &b"\0\x05\0\x01\0\0\0\x05\0\x07\x04pods\xc0\x14"[..]].concat();
        let mut message = start(0, 3, 0);
        message.extend(pods);
        let at = u8::try_from(message.len() - 7).unwrap();
        message.extend(address(&[0xc0, at], 1));
        message.extend(address(&[0xc0, at], 2));
        let response = QUESTION.read(&message).unwrap();
        let found: Vec<_> = response.of("engines.example").collect();
        let address = |last| RecordData::Address(IpAddr::from([10, 0, 0, last]));
        assert_eq!(found, [&address(1), &address(2)]);
        assert_eq!((response.status, response.is_truncated), (0, false));
    }

    #[test]
    fn services_are_read_with_the_addresses_of_their_targets() {
        let question = Question { record_type: RecordType::Srv, ..QUESTION };
        let mut message = start(0, 1, 1);
        message[30] = 33;
        message.extend(b"\xc0\x0c\0\x21\0\x01\0\0\0\x05\0\x0b\0\x01\0\x02\x1f\x40\x02p0\xc0\x14");
        message.extend(address(b"\x02p0\xc0\x14", 9));
        let response = question.read(&message).unwrap();
        let target = "p0.example".to_owned();
        let service = RecordData::Service { priority: 1, weight: 2, port: 8000, target };
        assert_eq!(response.of("engines.example").collect::<Vec<_>>(), [&service]);
        assert_eq!(response.of("p0.example").count(), 1);
    }

    #[test]
    fn responses_to_other_questions_are_not_read() {
        let mut message = start(0, 1, 0);
        message.extend(address(b"\xc0\x0c", 1));
        assert!(QUESTION.read(&message).is_some());
        assert!(Question { id: 8, ..QUESTION }.read(&message).is_none());
        assert!(Question { name: "other.example", ..QUESTION }.read(&message).is_none());
        let other = Question { record_type: RecordType::Aaaa, ..QUESTION };
        assert!(other.read(&message).is_none());
        message[2] = 0;
        assert!(QUESTION.read(&message).is_none(), "a query is no response");
        let unknown = QUESTION.read(&start(3, 0, 0)).unwrap();
        assert_eq!((unknown.status, unknown.records.len()), (3, 0));
    }

    #[test]
    fn cycles_of_names_end() {
        let mut message = start(0, 1, 0);
        let at = u8::try_from(message.len()).unwrap();
        message.extend(address(&[0xc0, at], 1));
        assert!(QUESTION.read(&message).is_none(), "a name that leads to itself");
        let alias = |name: &str, to: &str| DnsRecord {
            name: name.to_owned(),
            data: RecordData::Alias(to.to_owned()),
        };
        let records = vec![alias("a", "b"), alias("b", "a")];
        let response = DnsResponse { status: 0, is_truncated: false, records };
        assert!(response.of("a").all(|data| matches!(data, RecordData::Alias(_))));
    }

    proptest! {
        #[test]
        fn no_message_panics(
            mut message in proptest::collection::vec(any::<u8>(), 0..200),
            start_with in any::<bool>(),
        ) {
            if start_with {
                message = [start(0, 9, 9), message].concat();
            }
            let _read = QUESTION.read(&message);
        }
    }
}
