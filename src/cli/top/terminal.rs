//! The terminal during the view: raw mode on the alternate screen; restored on drop.

use std::io::{self, Read, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Switches to the alternate screen and hides the cursor.
const ENTER: &str = "\u{1b}[?1049h\u{1b}[?25l";
/// Undoes what [`ENTER`] does.
const LEAVE: &str = "\u{1b}[?25h\u{1b}[?1049l";
/// Moves to the first cell.
const HOME: &str = "\u{1b}[H";
/// Clears the rest of a line, and ends it.
const CLEAR_LINE: &str = "\u{1b}[K\r\n";
/// Clears the rows below.
const CLEAR_BELOW: &str = "\u{1b}[J";
/// Keys that quit: q, Q, Ctrl-C, Ctrl-D.
const QUIT: [u8; 4] = [b'q', b'Q', 3, 4];

/// A terminal in raw mode.
pub(super) struct Terminal {
    before: Option<Termios>,
    keys: Receiver<u8>,
}

impl Terminal {
    /// Enters raw mode and the alternate screen.
    pub(super) fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin()).ok();
        if let Some(before) = &before {
            let mut raw = before.clone();
            raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
            tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        }
        let (sender, keys) = channel();
        // The thread is still blocked in its read when the view quits; it ends with the process.
        std::thread::Builder::new().name("keys".to_owned()).spawn(move || {
            let mut bytes = io::stdin().lock().bytes();
            while let Some(Ok(key)) = bytes.next() {
                if sender.send(key).is_err() {
                    return;
                }
            }
        })?;
        write(ENTER)?;
        Ok(Self { before, keys })
    }

    pub(super) fn show(&self, lines: &[String]) -> io::Result<()> {
        let height = size().1;
        let mut text = HOME.to_owned();
        for line in lines.iter().take(height.saturating_sub(1)) {
            text.push_str(line);
            text.push_str(CLEAR_LINE);
        }
        text.push_str(CLEAR_BELOW);
        write(&text)
    }

    /// Waits. Returns whether a quit key was pressed.
    pub(super) fn wait(&self, time: Duration) -> bool {
        match self.keys.recv_timeout(time) {
            Ok(key) => QUIT.contains(&key),
            Err(RecvTimeoutError::Timeout) => false,
            // Standard input is closed: the view runs until a signal.
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(time);
                false
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let restored = write(LEAVE).is_ok();
        let reset = self
            .before
            .as_ref()
            .map(|before| tcsetattr(io::stdin(), OptionalActions::Now, before).is_ok());
        // Fails only if the terminal is gone.
        tracing::trace!(restored, ?reset, "terminal restored");
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Returns columns and rows; without a terminal, a size that suits most files and pipes.
pub(super) fn size() -> (usize, usize) {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        Ok(_) | Err(_) => (160, 50),
    }
}
