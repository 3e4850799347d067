//! One identity provider: its keys, and the thread that fetches them. The last keys stay while it
//! cannot be reached. A token with an unknown key makes the thread fetch sooner, but no more often
//! than every [`MIN_INTERVAL`], whatever clients send.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::Thread;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use jsonwebtoken::Algorithm;
use penstock_api::units::Timestamp;
use penstock_clock::{now, unix_seconds};
use penstock_config::{JwksSource, JwtConfig, KeyHash, TokenAlgorithm};
use tokio::sync::watch;

use super::fetch::{FetchError, fetch};
use super::key_set::KeySet;

/// The least time between two fetches from a provider.
const MIN_INTERVAL: Duration = Duration::from_secs(10);
/// The most time between two looks at a file.
const MAX_FILE_INTERVAL: Duration = Duration::from_secs(5);
/// The least time between two looks at a file.
const MIN_FILE_INTERVAL: Duration = Duration::from_secs(1);

/// An identity provider.
#[derive(Debug)]
pub(super) struct Issuer {
    pub(super) config: JwtConfig,
    /// The `iss` of its tokens.
    pub(super) id: Arc<str>,
    pub(super) name: Arc<str>,
    pub(super) algorithms: Vec<Algorithm>,
    keys: ArcSwapOption<KnownKeys>,
    /// The version of the keys, which grows when they change.
    version: AtomicU64,
    is_wanted: AtomicBool,
    is_fetching: AtomicBool,
    /// The start of the last fetch, in microseconds of the process's clock, plus one.
    last_start: AtomicU64,
    fetched_at: AtomicU64,
    fetched: AtomicU64,
    failed: AtomicU64,
    is_reached: AtomicBool,
    done: watch::Sender<()>,
    thread: OnceLock<Thread>,
}

#[derive(Debug)]
struct KnownKeys {
    version: u64,
    keys: KeySet,
    document: KeyHash,
}

#[derive(Debug, Clone)]
pub struct IssuerFigures {
    /// The name of the issuer.
    pub name: Arc<str>,
    pub keys: usize,
    /// The time since its keys were last fetched, in seconds; `None` before the first time.
    pub age: Option<u64>,
    pub fetched: u64,
    pub failed: u64,
}

impl Issuer {
    /// Creates an issuer and starts its thread. It starts with the keys of the `known` issuer that
    /// has the same source.
    pub(super) fn start(config: &JwtConfig, known: &[Arc<Self>]) -> Arc<Self> {
        let issuer = Arc::new(Self::new(config));
        let same =
            |one: &&Arc<Self>| one.config.issuer == config.issuer && one.config.jwks == config.jwks;
        if let Some(same) = known.iter().find(same) {
            issuer.version.store(same.version(), Ordering::Release);
            issuer.fetched_at.store(same.fetched_at.load(Ordering::Relaxed), Ordering::Relaxed);
            // Other settings of the same provider: its keys are as good as before.
            issuer.keys.store(same.keys.load_full());
        }
        // The thread must not keep an issuer that a reload removes.
        let weak = Arc::downgrade(&issuer);
        let thread = std::thread::Builder::new().name("token keys".to_owned());
        match thread.spawn(move || run(&weak)) {
            Ok(handle) => {
                if issuer.thread.set(handle.thread().clone()).is_err() {
                    debug_assert!(false, "an issuer has one thread");
                }
            }
            Err(error) => tracing::error!(
                issuer = %issuer.name, %error,
                "auth.jwt: no thread to fetch keys, tokens of the issuer are refused"
            ),
        }
        issuer
    }

    fn new(config: &JwtConfig) -> Self {
        Self {
            id: config.issuer.as_str().into(),
            name: config.issuer_name().into(),
            algorithms: config.algorithms.iter().copied().map(to_algorithm).collect(),
            config: config.clone(),
            keys: ArcSwapOption::empty(),
            version: AtomicU64::new(0),
            is_wanted: AtomicBool::new(false),
            // The thread fetches at once: a request that comes before waits for it.
            is_fetching: AtomicBool::new(true),
            last_start: AtomicU64::new(0),
            fetched_at: AtomicU64::new(0),
            fetched: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            is_reached: AtomicBool::new(true),
            done: watch::Sender::new(()),
            thread: OnceLock::new(),
        }
    }

    /// Returns the keys and their version; `None` until they have been fetched.
    pub(super) fn keys(&self) -> Option<(u64, KeysGuard)> {
        let known = self.keys.load_full()?;
        Some((known.version, KeysGuard(known)))
    }

    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Requests a fetch of the keys. Returns a receiver of its end if it runs or starts now; `None`
    /// in the pause after a fetch: waiting would not help.
    pub(super) fn request_keys(&self, now: Timestamp) -> Option<watch::Receiver<()>> {
        let done = self.done.subscribe();
        if self.is_fetching.load(Ordering::Acquire) {
            return Some(done);
        }
        // Read before the thread wakes: once it fetches, the pause has started.
        let starts_now = self.pause_left(now).is_zero();
        self.is_wanted.store(true, Ordering::Release);
        self.wake();
        starts_now.then_some(done)
    }

    /// Reads a file again soon.
    pub(super) fn reread(&self) {
        if matches!(self.config.jwks, JwksSource::File(_)) {
            self.is_wanted.store(true, Ordering::Release);
            self.wake();
        }
    }

    pub(super) fn figures(&self) -> IssuerFigures {
        let fetched_at = self.fetched_at.load(Ordering::Relaxed);
        IssuerFigures {
            name: Arc::clone(&self.name),
            keys: self.keys.load().as_ref().map_or(0, |known| known.keys.len()),
            age: (fetched_at > 0).then(|| unix_seconds().saturating_sub(fetched_at)),
            fetched: self.fetched.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
        }
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Returns the time until the next fetch is allowed.
    fn pause_left(&self, now: Timestamp) -> Duration {
        let interval = match self.config.jwks {
            JwksSource::File(_) => MIN_FILE_INTERVAL,
            JwksSource::Https(_) => MIN_INTERVAL,
        };
        self.since_start(now).map_or(Duration::ZERO, |since| interval.saturating_sub(since))
    }

    /// Returns the time since the last fetch started.
    fn since_start(&self, now: Timestamp) -> Option<Duration> {
        let start = self.last_start.load(Ordering::Acquire).checked_sub(1)?;
        Some(Duration::from_micros(now.0.saturating_sub(start)))
    }

    /// Fetches the keys if it is time. Returns the time until it is.
    fn work(&self, now: Timestamp) -> Duration {
        let interval = match (&self.config.jwks, self.is_reached.load(Ordering::Relaxed)) {
            (JwksSource::File(_), _) => self.config.refresh.min(MAX_FILE_INTERVAL),
            (JwksSource::Https(_), true) => self.config.refresh.max(MIN_INTERVAL),
            (JwksSource::Https(_), false) => MIN_INTERVAL,
        };
        let is_wanted = self.is_wanted.load(Ordering::Acquire);
        let left = match self.since_start(now) {
            None => Duration::ZERO,
            Some(_) if is_wanted => self.pause_left(now),
            Some(since) => interval.saturating_sub(since),
        };
        if !left.is_zero() {
            return left;
        }
        self.is_fetching.store(true, Ordering::Release);
        self.is_wanted.store(false, Ordering::Release);
        self.last_start.store(now.0.saturating_add(1), Ordering::Release);
        self.report(fetch(&self.config).and_then(|document| self.publish(&document)));
        self.is_fetching.store(false, Ordering::Release);
        self.done.send_replace(());
        Duration::ZERO
    }

    /// Uses the keys of a document, if it is another one than the last.
    fn publish(&self, document: &[u8]) -> Result<(), FetchError> {
        let hash = KeyHash::of(document);
        let known = self.keys.load();
        // The same keys keep their version, and so all remembered verdicts.
        if known.as_ref().is_some_and(|known| known.document == hash) {
            return Ok(());
        }
        let keys = KeySet::parse(document, self.config.max_jwks_keys)?;
        if keys.unused > 0 {
            tracing::warn!(
                issuer = %self.name, used = keys.len(), unused = keys.unused,
                "auth.jwt: keys of the provider are no public keys for signatures, and not used"
            );
        }
        let version = self.version().wrapping_add(1);
        self.keys.store(Some(Arc::new(KnownKeys { version, keys, document: hash })));
        // After the keys: a verdict of this version must find them.
        self.version.store(version, Ordering::Release);
        Ok(())
    }

    fn report(&self, result: Result<(), FetchError>) {
        match result {
            Ok(()) => {
                self.fetched.fetch_add(1, Ordering::Relaxed);
                self.fetched_at.store(unix_seconds(), Ordering::Relaxed);
                if !self.is_reached.swap(true, Ordering::Relaxed) {
                    tracing::info!(issuer = %self.name, "auth.jwt: the provider's keys are back");
                }
            }
            Err(error) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                // One line for a failure that lasts.
                if self.is_reached.swap(false, Ordering::Relaxed) {
                    let keys = self.keys.load().as_ref().map_or(0, |known| known.keys.len());
                    tracing::warn!(
                        issuer = %self.name, jwks = %self.config.jwks, %error, keys,
                        "auth.jwt: the provider's keys cannot be fetched, the last ones stay"
                    );
                }
            }
        }
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        // The thread finds no issuer, and ends.
        self.wake();
    }
}

/// The keys at one time.
pub(super) struct KeysGuard(Arc<KnownKeys>);

impl std::ops::Deref for KeysGuard {
    type Target = KeySet;

    fn deref(&self) -> &KeySet {
        &self.0.keys
    }
}

fn run(issuer: &Weak<Issuer>) {
    loop {
        let pause = match issuer.upgrade() {
            Some(issuer) => issuer.work(now()),
            None => return,
        };
        std::thread::park_timeout(pause);
    }
}

fn to_algorithm(algorithm: TokenAlgorithm) -> Algorithm {
    match algorithm {
        TokenAlgorithm::Rs256 => Algorithm::RS256,
        TokenAlgorithm::Rs384 => Algorithm::RS384,
        TokenAlgorithm::Rs512 => Algorithm::RS512,
        TokenAlgorithm::Ps256 => Algorithm::PS256,
        TokenAlgorithm::Ps384 => Algorithm::PS384,
        TokenAlgorithm::Ps512 => Algorithm::PS512,
        TokenAlgorithm::Es256 => Algorithm::ES256,
        TokenAlgorithm::Es384 => Algorithm::ES384,
        TokenAlgorithm::EdDsa => Algorithm::EdDSA,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_waits_for_keys_once_the_interval_of_fetches_has_passed() {
        let jwks = JwksSource::Https("https://provider.example/keys".to_owned());
        let issuer = Issuer::new(&JwtConfig { jwks, ..JwtConfig::default() });
        let start = Timestamp(5_000_000);
        let waits = |after| issuer.request_keys(start.after(after)).is_some();
        assert!(waits(Duration::ZERO), "the first fetch runs");
        issuer.is_fetching.store(false, Ordering::Release);
        issuer.last_start.store(start.0 + 1, Ordering::Release);
        assert!(!waits(MIN_INTERVAL - Duration::from_micros(1)));
        assert!(waits(MIN_INTERVAL));
    }
}
