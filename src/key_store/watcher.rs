//! The thread that sees the changes of other processes: the command line, other penstocks.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::KeyStore;

/// The pause between two looks, each of which takes microseconds: a new key is known at once.
const INTERVAL: Duration = Duration::from_millis(100);

/// Starts the thread. It ends with the store.
pub(super) fn start(store: &Arc<KeyStore>) -> io::Result<()> {
    let store = Arc::downgrade(store);
    let thread = std::thread::Builder::new().name("client keys".to_owned());
    thread.spawn(move || watch(&store)).map(drop)
}

fn watch(store: &Weak<KeyStore>) {
    loop {
        std::thread::sleep(INTERVAL);
        match store.upgrade() {
            Some(store) => store.refresh(),
            None => return,
        }
    }
}
