//! Things that leave the process off the hot path: a bounded queue, and one thread that carries what
//! waits in it. Who puts something in never waits: what finds no room is dropped and counted.
//! Bottom layer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

/// The most items that are carried at one time.
const BATCH: usize = 256;

/// Carries items to where they go, on a thread of its own.
pub trait Sink: Send + 'static {
    /// What is carried, for messages: "the access log".
    const NAME: &'static str;
    /// How long a first item waits for others to go with it.
    const BATCH_DELAY: Duration;

    /// Carries a batch.
    ///
    /// # Errors
    /// When it did not get there; it is lost then.
    fn deliver(&mut self, batch: &[Vec<u8>]) -> io::Result<()>;

    /// Somebody called [`BoundedQueue::wake`].
    fn wake(&mut self) {}
}

/// What became of the items so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Deliveries {
    /// Carried to their end.
    pub delivered: u64,
    /// Dropped, because too many were waiting.
    pub dropped: u64,
    /// Lost on their way.
    pub failed: u64,
}

#[derive(Debug, Default)]
struct Counts {
    delivered: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

enum Message {
    Item(Vec<u8>),
    Wake,
    /// Say so when everything before this has been carried.
    Flush(SyncSender<()>),
}

/// A queue with a thread that empties it.
#[derive(Debug)]
pub struct BoundedQueue {
    sender: SyncSender<Message>,
    counts: Arc<Counts>,
}

impl BoundedQueue {
    /// Starts the thread. At most `capacity` items wait.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start<C: Sink>(sink: C, capacity: usize) -> io::Result<Self> {
        let (queue, thread) = Self::new(sink, capacity);
        std::thread::Builder::new().name(C::NAME.to_owned()).spawn(move || thread.run())?;
        Ok(queue)
    }

    fn new<C: Sink>(sink: C, capacity: usize) -> (Self, Thread<C>) {
        let (sender, receiver) = sync_channel(capacity);
        let counts = Arc::<Counts>::default();
        let queue = Self { sender, counts: Arc::clone(&counts) };
        let (batch, is_failing) = (Vec::with_capacity(BATCH), false);
        (queue, Thread { sink, receiver, counts, batch, is_failing })
    }

    /// Takes an item, unless too many are waiting.
    pub fn put(&self, item: Vec<u8>) {
        match self.sender.try_send(Message::Item(item)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.counts.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Wakes the sink up; one whose queue is full is awake anyway.
    pub fn wake(&self) {
        if self.sender.try_send(Message::Wake).is_err() {
            tracing::debug!("the queue is too busy to be woken");
        }
    }

    /// Waits until everything so far is carried, but no longer than `limit`; returns whether it is.
    pub fn flush(&self, limit: Duration) -> bool {
        const PAUSE: Duration = Duration::from_millis(5);
        let (done, carried) = sync_channel(1);
        let mut left = limit;
        while let Err(TrySendError::Full(_)) = self.sender.try_send(Message::Flush(done.clone())) {
            if left.is_zero() {
                return false;
            }
            std::thread::sleep(PAUSE);
            left = left.saturating_sub(PAUSE);
        }
        carried.recv_timeout(left).is_ok()
    }

    /// What became of the items so far.
    pub fn deliveries(&self) -> Deliveries {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counts { delivered, dropped, failed } = &*self.counts;
        Deliveries { delivered: read(delivered), dropped: read(dropped), failed: read(failed) }
    }
}

struct Thread<C> {
    sink: C,
    receiver: Receiver<Message>,
    counts: Arc<Counts>,
    batch: Vec<Vec<u8>>,
    is_failing: bool,
}

impl<C: Sink> Thread<C> {
    /// Carries until nobody is left to put anything in.
    fn run(mut self) {
        while let Ok(message) = self.receiver.recv() {
            self.take(message);
            while !self.batch.is_empty() && self.batch.len() < BATCH {
                match self.receiver.recv_timeout(C::BATCH_DELAY) {
                    Ok(message) => self.take(message),
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
                }
            }
            self.deliver();
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Item(item) => self.batch.push(item),
            Message::Wake => self.sink.wake(),
            Message::Flush(done) => {
                self.deliver();
                // Whoever asked may have stopped waiting.
                done.try_send(()).unwrap_or_default();
            }
        }
    }

    fn deliver(&mut self) {
        let count = u64::try_from(self.batch.len()).unwrap_or(u64::MAX);
        if count == 0 {
            return;
        }
        let carried = self.sink.deliver(&self.batch);
        self.batch.clear();
        match carried {
            Ok(()) => {
                self.counts.delivered.fetch_add(count, Ordering::Relaxed);
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!("{} gets through again", C::NAME);
                }
            }
            Err(error) => {
                self.counts.failed.fetch_add(count, Ordering::Relaxed);
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::error!(%error, "{} does not get through; what it holds is lost", C::NAME);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    struct Collect(Sender<Vec<Vec<u8>>>);

    impl Sink for Collect {
        const NAME: &'static str = "a test";
        const BATCH_DELAY: Duration = Duration::from_millis(1);

        fn deliver(&mut self, batch: &[Vec<u8>]) -> io::Result<()> {
            if batch.iter().any(|item| item == b"bad") {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0.send(batch.to_vec()).map_err(|_gone| io::ErrorKind::BrokenPipe.into())
        }
    }

    #[test]
    fn items_arrive_in_order_and_failures_are_counted() {
        let (sender, told) = channel();
        let queue = BoundedQueue::start(Collect(sender), 2000).unwrap();
        for number in 0..1000_u32 {
            queue.put(number.to_string().into_bytes());
        }
        assert!(queue.flush(LIMIT));
        let arrived: Vec<Vec<u8>> = told.try_iter().flatten().collect();
        let expected: Vec<Vec<u8>> = (0..1000_u32).map(|n| n.to_string().into_bytes()).collect();
        assert_eq!(arrived, expected);
        queue.put(b"bad".to_vec());
        assert!(queue.flush(LIMIT));
        queue.put(b"good".to_vec());
        assert!(queue.flush(LIMIT));
        let expected = Deliveries { delivered: 1001, dropped: 0, failed: 1 };
        assert_eq!(queue.deliveries(), expected);
    }

    #[test]
    fn what_finds_no_room_is_dropped_and_counted() {
        let (sender, _told) = channel();
        let (queue, thread) = BoundedQueue::new(Collect(sender), 2);
        for _ in 0..5 {
            queue.put(b"x".to_vec());
        }
        assert_eq!(queue.deliveries().dropped, 3);
        assert!(!queue.flush(Duration::ZERO), "nobody carries");
        drop(thread);
        queue.put(b"x".to_vec());
        assert_eq!(queue.deliveries().dropped, 4, "also when nobody carries any more");
    }
}
