use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;

const NAMES: [&str; 4] = ["a:waiting", "a:running", "b_info", "up"];

/// A sample as the tests compare it: family, labels, the value's bits.
type Plain = (usize, Vec<(String, String)>, u64);

fn read(page: &[u8]) -> Vec<Plain> {
    let wanted = Wanted::new(NAMES);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let plain = |sample: ScrapedSample<'_>| {
        let labels = sample.labels.iter();
        let labels =
            labels.map(|(name, value)| (text(name.to_vec()), text(value.bytes().collect())));
        (sample.family, labels.collect(), canonical(sample.value))
    };
    wanted.samples(page).map(plain).collect()
}

/// One not-a-number is like another.
fn canonical(value: f64) -> u64 {
    if value.is_nan() { f64::NAN.to_bits() } else { value.to_bits() }
}

fn one(line: &str) -> Option<f64> {
    let wanted = Wanted::new(NAMES);
    let mut samples = wanted.samples(line.as_bytes());
    let value = samples.next().map(|sample| sample.value);
    assert!(samples.next().is_none(), "{line:?} is one line");
    value
}

#[test]
fn values_of_every_form_are_parsed() {
    for (line, value) in [
        ("up 1", 1.0),
        ("up 1\r\n", 1.0),
        ("  up\t 1.5e-3 ", 1.5e-3),
        ("up{} -2E+4", -2e4),
        ("up{le=\"+Inf\"} 3 1700000000000", 3.0),
        ("up { a = \"b\" , } 4", 4.0),
        ("up 5 # {trace=\"x\"} 0.1", 5.0),
        ("up +Inf", f64::INFINITY),
        ("up -Inf", f64::NEG_INFINITY),
        ("up{a=\"} 7\"} 8", 8.0),
    ] {
        assert_eq!(one(line), Some(value), "{line:?}");
    }
    assert!(one("up NaN").is_some_and(f64::is_nan));
}

#[test]
fn other_lines_are_skipped() {
    for line in [
        "",
        "up",
        "up ",
        "# up 1",
        "# TYPE up gauge",
        "upper 1",
        "u 1",
        "up one",
        "up 1 later",
        "up 1 2 3",
        "up{ 1",
        "up{a} 1",
        "up{a=} 1",
        "up{a=\"b} 1",
        "up{a=\"\\x\"} 1",
        "up{1=\"b\"} 1",
        "up{a=\"b\" c=\"d\"} 1",
        "up{\"quoted\"} 1",
        "up{a=\"b\\",
        "{} 1",
    ] {
        assert_eq!(one(line), None, "{line:?}");
    }
}

#[test]
fn labels_are_found_and_unescaped() {
    let wanted = Wanted::new(NAMES);
    let page = br#"b_info{a="1,\"2\"\\\n",size="16",z="None"} 1"#;
    let sample = wanted.samples(page).next().unwrap();
    assert_eq!(sample.family, 2);
    let get = |name| sample.labels.get(name);
    assert!(get("a").unwrap().is("1,\"2\"\\\n"));
    assert_eq!(get("size").unwrap().to_number(), Some(16.0));
    assert_eq!(get("z").unwrap().to_number::<f64>(), None);
    assert_eq!(get("b"), None);
    assert!(!get("size").unwrap().is("1"), "neither is a prefix the whole");
}

#[test]
fn names_of_128_bytes_are_never_found() {
    let long: &'static str = "x".repeat(130).leak();
    let wanted = Wanted::new([long]);
    assert_eq!(wanted.samples(format!("{long} 1").as_bytes()).count(), 0);
}

#[test]
fn reading_allocates_nothing() {
    let wanted = Wanted::new(NAMES);
    let mut page = String::new();
    for number in 0..200 {
        writeln!(page, "# HELP a:waiting text\na:waiting{{m=\"x\\\"y\"}} {number}.25e3 17")
            .unwrap();
        writeln!(page, "other_bucket{{le=\"0.{number}\"}} 1").unwrap();
    }
    let counted = allocation_counter::measure(|| {
        let sum: f64 = wanted.samples(page.as_bytes()).map(|sample| sample.value).sum();
        let labels = wanted
            .samples(page.as_bytes())
            .filter(|sample| sample.labels.get("m").is_some_and(|value| value.is("x\"y")));
        assert!(sum > 0.0 && labels.count() == 200);
    });
    assert_eq!(counted.count_total, 0);
}

/// The format read the slow way, a character at a time.
struct Naive<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
}

impl Naive<'_> {
    fn page(page: &str) -> Vec<Plain> {
        page.split('\n')
            .filter_map(|line| {
                let line = line.strip_suffix('\r').unwrap_or(line);
                Naive { rest: line.chars().peekable() }.line()
            })
            .collect()
    }

    fn blanks(&mut self) {
        while self.rest.next_if(|c| matches!(c, ' ' | '\t')).is_some() {}
    }

    fn word(&mut self, until: &str) -> String {
        let mut word = String::new();
        while let Some(c) = self.rest.next_if(|c| !until.contains(*c)) {
            word.push(c);
        }
        word
    }

    fn expect(&mut self, wanted: char) -> Option<()> {
        self.rest.next_if_eq(&wanted).map(|_| ())
    }

    fn line(&mut self) -> Option<Plain> {
        self.blanks();
        let name = self.word(" \t{");
        self.rest.peek()?;
        let family = NAMES.iter().position(|known| *known == name)?;
        self.blanks();
        let mut labels = Vec::new();
        if self.expect('{').is_some() {
            loop {
                self.blanks();
                if self.expect('}').is_some() {
                    break;
                }
                labels.push(self.label()?);
                self.blanks();
                if self.expect(',').is_none() && self.rest.peek() != Some(&'}') {
                    return None;
                }
            }
        }
        self.blanks();
        let value: f64 = self.word(" \t").parse().ok()?;
        self.blanks();
        if !matches!(self.rest.peek(), None | Some('#')) {
            self.word(" \t").parse::<f64>().ok()?;
            self.blanks();
        }
        matches!(self.rest.peek(), None | Some('#')).then(|| (family, labels, canonical(value)))
    }

    fn label(&mut self) -> Option<(String, String)> {
        let mut name = String::new();
        while let Some(c) = self.rest.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
            name.push(c);
        }
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        self.blanks();
        self.expect('=')?;
        self.blanks();
        self.expect('"')?;
        let mut value = String::new();
        loop {
            match self.rest.next()? {
                '"' => return Some((name, value)),
                '\\' => match self.rest.next()? {
                    'n' => value.push('\n'),
                    c @ ('\\' | '"') => value.push(c),
                    _ => return None,
                },
                c => value.push(c),
            }
        }
    }
}

fn blank() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["", "", "", " ", "\t", "  "])
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<f64>().prop_map(|value| value.to_string()),
        any::<f32>().prop_map(|value| format!("{value:e}")),
        any::<u16>().prop_map(|value| value.to_string()),
        prop::sample::select(vec!["+Inf", "-Inf", "NaN", "nan", "1e", "0x1", "", "1_0", "-"])
            .prop_map(str::to_owned),
    ]
}

fn label() -> impl Strategy<Value = String> {
    let text = r#"([a-z,}{ #=é]|\\\\|\\"|\\n){0,6}"#;
    ("[a-z_]{1,4}", text, blank(), blank(), blank())
        .prop_map(|(name, text, a, b, c)| format!("{a}{name}{b}={c}\"{text}\"{a}"))
}

fn line() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["a:waiting", "a:running", "b_info", "up", "down", "# up"]);
    let labels = prop::option::of(prop::collection::vec(label(), 0..4));
    let end = prop::sample::select(vec!["", "", " 17", " 1e3\t", " # {x=\"1\"} 2", " x", "\r"]);
    let whole = (name, labels, value(), blank(), end)
        .prop_map(|(name, labels, value, gap, end)| {
            let labels =
                labels.map_or_else(|| " ".to_owned(), |all| format!("{{{}}}", all.join(",")));
            format!("{gap}{name}{gap}{labels}{gap}{value}{end}")
        })
        .boxed();
    let broken = whole.clone().prop_flat_map(|line| {
        let length = line.chars().count();
        (0..=length).prop_map(move |keep| line.chars().take(keep).collect::<String>())
    });
    prop_oneof![4 => whole, 2 => broken, 1 => "[ -~\t]{0,20}"]
}

proptest! {
    #[test]
    fn parser_agrees_with_the_naive_one(
        lines in prop::collection::vec(line(), 0..12),
        end in prop::sample::select(vec!["\n", "\r\n"]),
    ) {
        let page = lines.join(end);
        prop_assert_eq!(read(page.as_bytes()), Naive::page(&page), "{:?}", page);
    }

    #[test]
    fn arbitrary_bytes_never_panic(page in prop::collection::vec(
        prop_oneof![3 => prop::sample::select(b"up{}=\"\\,\n\r 1#".to_vec()), 1 => any::<u8>()],
        0..80,
    )) {
        let all = read(&page);
        prop_assert!(all.len() <= page.len());
    }
}
