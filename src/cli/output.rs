//! Standard output and standard error, written to in one place.

use std::fmt::{self, Display};
use std::io::{self, Write};

use super::error::CliError;

/// The streams for a command's results and messages.
pub(super) struct Output {
    results: Box<dyn Write>,
    complaints: Box<dyn Write>,
}

impl Output {
    /// Writes to the two streams of the process.
    pub(super) fn of_process() -> Self {
        Self { results: Box::new(io::stdout()), complaints: Box::new(io::stderr()) }
    }

    /// Writes a result and a newline, and flushes.
    pub(super) fn line(&mut self, text: impl Display) -> Result<(), CliError> {
        self.text(format_args!("{text}\n"))
    }

    /// Writes a result without a newline.
    pub(super) fn text(&mut self, text: impl Display) -> Result<(), CliError> {
        // The reader of a pipe gets every result as soon as it is known.
        write!(self.results, "{text}").and_then(|()| self.results.flush()).map_err(CliError::Output)
    }

    /// Shows the progress of some work on standard error, if that is a terminal; removes the line
    /// at the end.
    pub(super) fn progress(&mut self, done: usize, all: usize) {
        const WIDTH: usize = 40;
        let filled = WIDTH * done / all.max(1);
        let (bar, rest) = ("#".repeat(filled), ".".repeat(WIDTH - filled));
        let line = if done < all {
            format!("\r[{bar}{rest}] {done}/{all}")
        } else {
            "\r\x1b[K".to_owned()
        };
        // A closed standard error leaves no place to report to.
        _ = write!(self.complaints, "{line}").and_then(|()| self.complaints.flush());
    }

    /// Writes `label: message` to standard error.
    pub(super) fn complain(&mut self, label: &str, message: impl Display) {
        // A closed standard error leaves no place to report to.
        _ = writeln!(self.complaints, "{label}: {message}");
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Output")
    }
}

#[cfg(test)]
pub(super) mod testing {
    //! Output that tests read.

    use std::sync::{Arc, Mutex};

    use super::*;

    /// The text written to one stream.
    #[derive(Debug, Clone, Default)]
    pub(in crate::cli) struct Written(Arc<Mutex<Vec<u8>>>);

    impl Written {
        pub(in crate::cli) fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A pipe whose reader has left.
    pub(in crate::cli) struct Broken;

    impl Write for Broken {
        fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Output {
        pub(in crate::cli) fn to(
            results: impl Write + 'static,
            complaints: impl Write + 'static,
        ) -> Self {
            Self { results: Box::new(results), complaints: Box::new(complaints) }
        }
    }
}
