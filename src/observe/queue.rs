//! A bounded queue in front of a sink (file, collector), drained in batches by one thread.
//! Producers never wait: an item for a full queue is dropped and counted. Bottom layer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

// Enough that a write costs little per item; a failed one loses no more than this.
const BATCH: usize = 256;

/// The destination of items; runs on the thread of the queue.
pub trait Sink: Send + 'static {
    /// The name of the sink in log messages.
    const NAME: &'static str;
    /// The time that the first item of a batch waits for further ones.
    const BATCH_DELAY: Duration;

    /// Delivers a batch.
    ///
    /// # Errors
    /// When the delivery fails; the batch is dropped.
    fn deliver(&mut self, batch: &[Vec<u8>]) -> io::Result<()>;

    /// Returns the destination, for log messages.
    fn destination(&self) -> String;

    /// Called after [`BoundedQueue::wake`].
    fn wake(&mut self) {}
}

/// The numbers of items by result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Deliveries {
    pub delivered: u64,
    /// Items dropped because the queue was full.
    pub dropped: u64,
    /// Items dropped because the delivery failed.
    pub failed: u64,
}

#[derive(Debug, Default)]
struct DeliveryCounts {
    delivered: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

enum QueueMessage {
    Item(Vec<u8>),
    Wake,
    /// Signals when all earlier items have been delivered.
    Flush(SyncSender<()>),
}

/// A bounded queue with its thread.
#[derive(Debug)]
pub struct BoundedQueue {
    sender: SyncSender<QueueMessage>,
    counts: Arc<DeliveryCounts>,
}

impl BoundedQueue {
    /// Starts the thread; the queue holds at most `capacity` items.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start<C: Sink>(sink: C, capacity: usize) -> io::Result<Self> {
        let (queue, thread) = Self::new(sink, capacity);
        std::thread::Builder::new().name(C::NAME.to_owned()).spawn(move || thread.run())?;
        Ok(queue)
    }

    fn new<C: Sink>(sink: C, capacity: usize) -> (Self, Thread<C>) {
        let (sender, receiver) = sync_channel(capacity);
        let counts = Arc::<DeliveryCounts>::default();
        let queue = Self { sender, counts: Arc::clone(&counts) };
        let (batch, is_failing) = (Vec::with_capacity(BATCH), false);
        (queue, Thread { sink, receiver, counts, batch, is_failing })
    }

    /// Queues an item, or drops it if the queue is full.
    pub fn put(&self, item: Vec<u8>) {
        match self.sender.try_send(QueueMessage::Item(item)) {
            Ok(()) => {}
            // A request must never wait for a disk or a collector.
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.counts.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Calls [`Sink::wake`]. Unnecessary while the queue is full, as its thread is then running.
    pub fn wake(&self) {
        if self.sender.try_send(QueueMessage::Wake).is_err() {
            tracing::debug!("queue full, wake-up skipped");
        }
    }

    /// Waits until all queued items are delivered, at most `limit`. Returns whether they are.
    pub fn flush(&self, limit: Duration) -> bool {
        const PAUSE: Duration = Duration::from_millis(5);
        let (done, flushed) = sync_channel(1);
        let mut left = limit;
        // Polled, since `std` has no send with a timeout: a sink that hangs must not hold up the
        // end.
        while let Err(TrySendError::Full(_)) =
            self.sender.try_send(QueueMessage::Flush(done.clone()))
        {
            if left.is_zero() {
                return false;
            }
            std::thread::sleep(PAUSE);
            left = left.saturating_sub(PAUSE);
        }
        flushed.recv_timeout(left).is_ok()
    }

    /// Returns the numbers of items by result.
    pub fn deliveries(&self) -> Deliveries {
        let DeliveryCounts { delivered, dropped, failed } = &*self.counts;
        let [delivered, dropped, failed] =
            [delivered, dropped, failed].map(|counter| counter.load(Ordering::Relaxed));
        Deliveries { delivered, dropped, failed }
    }
}

struct Thread<C> {
    sink: C,
    receiver: Receiver<QueueMessage>,
    counts: Arc<DeliveryCounts>,
    batch: Vec<Vec<u8>>,
    is_failing: bool,
}

impl<C: Sink> Thread<C> {
    /// Delivers until the last producer is dropped.
    fn run(mut self) {
        while let Ok(message) = self.receiver.recv() {
            self.take(message);
            while !self.batch.is_empty() && self.batch.len() < BATCH {
                match self.receiver.recv_timeout(C::BATCH_DELAY) {
                    Ok(message) => self.take(message),
                    // What was collected is delivered even if all producers are gone.
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
                }
            }
            self.deliver();
        }
    }

    fn take(&mut self, message: QueueMessage) {
        match message {
            QueueMessage::Item(item) => self.batch.push(item),
            QueueMessage::Wake => self.sink.wake(),
            QueueMessage::Flush(done) => {
                // Items before the flush must be delivered before it is confirmed.
                self.deliver();
                let is_awaited = done.try_send(()).is_ok();
                tracing::trace!(is_awaited, "queue flushed");
            }
        }
    }

    fn deliver(&mut self) {
        let count = u64::try_from(self.batch.len()).unwrap_or(u64::MAX);
        if count == 0 {
            return;
        }
        let delivered = self.sink.deliver(&self.batch);
        // Even if it failed: what is kept for a retry would grow as long as the outage lasts.
        self.batch.clear();
        match delivered {
            Ok(()) => {
                self.counts.delivered.fetch_add(count, Ordering::Relaxed);
                if std::mem::take(&mut self.is_failing) {
                    let destination = self.sink.destination();
                    tracing::info!(destination, "{}: delivery resumed", C::NAME);
                }
            }
            Err(error) => {
                self.counts.failed.fetch_add(count, Ordering::Relaxed);
                // Logged once per outage: a full disk would otherwise log every batch.
                if !std::mem::replace(&mut self.is_failing, true) {
                    let destination = self.sink.destination();
                    tracing::error!(destination, %error, "{}: delivery failed, batch dropped", C::NAME);
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

        fn destination(&self) -> String {
            "the test".to_owned()
        }

        fn deliver(&mut self, batch: &[Vec<u8>]) -> io::Result<()> {
            if batch.iter().any(|item| item == b"bad") {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0.send(batch.to_vec()).map_err(|_gone| io::ErrorKind::BrokenPipe.into())
        }
    }

    #[test]
    fn items_are_delivered_in_order_and_failures_counted() {
        let (sender, delivered) = channel();
        let queue = BoundedQueue::start(Collect(sender), 2000).unwrap();
        for number in 0..1000_u32 {
            queue.put(number.to_string().into_bytes());
        }
        assert!(queue.flush(LIMIT));
        let arrived: Vec<Vec<u8>> = delivered.try_iter().flatten().collect();
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
    fn full_queue_drops_and_counts_items() {
        let (sender, _delivered) = channel();
        let (queue, thread) = BoundedQueue::new(Collect(sender), 2);
        for _ in 0..5 {
            queue.put(b"x".to_vec());
        }
        assert_eq!(queue.deliveries().dropped, 3);
        assert!(!queue.flush(Duration::ZERO), "no thread runs");
        drop(thread);
        queue.put(b"x".to_vec());
        assert_eq!(queue.deliveries().dropped, 4, "also without a thread");
    }
}
