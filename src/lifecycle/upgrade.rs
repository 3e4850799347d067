//! Handing the listening sockets over to a new process, so that a new version takes a running one's
//! place and no connection is refused. The old process starts the new one with its own arguments and
//! `--take-over`, as an [`detached_launcher`]; the two talk over a pair of sockets, of which the new one finds its
//! end as its standard input. The sockets go over in one message; two lines come back: the id of the
//! process, and `ready` or why not.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, BufReader};

use super::detached_launcher;

/// The flag a new process is started with.
pub(super) const TAKE_OVER: &str = "--take-over";
/// How long a new process may take until it is ready.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a child that has closed its end may take to end itself.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// The most listening sockets that are handed over: as many as the kernel takes in one message.
const MOST_SOCKETS: usize = 253;
/// The longest list of their addresses.
const MOST_BYTES: usize = 32 * 1024;
const READY: &str = "ready";

/// A listening socket with the address it is known by.
pub type Socket = (String, RawFd);

/// Why no new process has taken over.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// It would be the end of a container.
    #[error("process 1 hands nothing over: its end would be the end of the container")]
    FirstProcess,
    /// Its program or its arguments are not known.
    #[error("this penstock was not started by `penstock serve`")]
    NotServing,
    /// There are more listening sockets than fit a message.
    #[error("there are {0} listening sockets, at most {MOST_SOCKETS} can be handed over")]
    TooManySockets(usize),
    /// It could not be started, or talked to.
    #[error("the new process could not be started: {0}")]
    Start(#[source] io::Error),
    /// It said why it cannot start.
    #[error("the new process could not start: {0}")]
    Refused(String),
    /// It ended and said nothing.
    #[error("the new process ended before it was ready ({0})")]
    Ended(ExitStatus),
    /// It was not ready in time, and was ended.
    #[error("the new process was not ready within {0:?} and was ended")]
    TimedOut(Duration),
    /// Another one is under way.
    #[error("other changes are under way")]
    Busy,
    /// This process ends already.
    #[error("this penstock is stopping")]
    Stopping,
}

/// How to start the process that takes over.
#[derive(Debug, Clone)]
pub struct Successor {
    /// The program: the path as it was at the start, where a new version may lie by now.
    pub program: PathBuf,
    /// Its arguments, without `--take-over`.
    pub arguments: Vec<OsString>,
}

impl Successor {
    /// A process like this one.
    pub fn of_process() -> Option<Self> {
        let arguments = std::env::args_os().skip(1).filter(|argument| argument != TAKE_OVER);
        Some(Self { program: std::env::current_exe().ok()?, arguments: arguments.collect() })
    }

    /// Starts it, hands it the sockets and waits until it is ready. Returns its process id.
    ///
    /// # Errors
    /// Why it is not; then it does not run any more.
    pub async fn take_over(&self, sockets: &[Socket]) -> Result<u32, UpgradeError> {
        if std::process::id() == 1 {
            return Err(UpgradeError::FirstProcess);
        }
        if sockets.len() > MOST_SOCKETS {
            return Err(UpgradeError::TooManySockets(sockets.len()));
        }
        let (ours, theirs) = UnixStream::pair().map_err(UpgradeError::Start)?;
        send(&ours, sockets).map_err(UpgradeError::Start)?;
        let mut starter = self.start(theirs).map_err(UpgradeError::Start)?;
        let mut pid = None;
        let told = tokio::time::timeout(PATIENCE, listen(ours, &mut pid)).await;
        match (told, pid) {
            (Ok(Ok(line)), Some(pid)) if line == READY => {
                end(&mut starter, None);
                Ok(pid)
            }
            (Ok(Ok(line)), pid) if line.is_empty() => Err(ended(&mut starter, pid).await),
            (Ok(Ok(line)), pid) => {
                let status = ended(&mut starter, pid).await;
                tracing::debug!(%status, "the new process has said why");
                Err(UpgradeError::Refused(line))
            }
            (Ok(Err(error)), pid) => {
                tracing::debug!(%error, "the new process hung up");
                Err(ended(&mut starter, pid).await)
            }
            (Err(_elapsed), pid) => {
                end(&mut starter, pid);
                Err(UpgradeError::TimedOut(PATIENCE))
            }
        }
    }

    /// Starts it by way of a process in between, which is this very program even where a new
    /// version lies in its place.
    fn start(&self, channel: UnixStream) -> io::Result<Child> {
        Command::new("/proc/self/exe")
            .arg(detached_launcher::COMMAND)
            .arg(&self.program)
            .args(&self.arguments)
            .arg(TAKE_OVER)
            .stdin(Stdio::from(OwnedFd::from(channel)))
            // The watchdog waits for this process until the other one is the service.
            .env_remove("WATCHDOG_PID")
            .spawn()
    }
}

/// What the new process says, nothing if it ends without a word; `pid` is its id, once it is known.
/// The process in between tells the id, so either may come first.
async fn listen(channel: UnixStream, pid: &mut Option<u32>) -> io::Result<String> {
    channel.set_nonblocking(true)?;
    let mut lines = BufReader::new(tokio::net::UnixStream::from_std(channel)?).lines();
    let mut word = None;
    while word.is_none() || pid.is_none() {
        let line = match lines.next_line().await {
            Ok(Some(line)) => line,
            Ok(None) => break,
            // It hung up without a look at the sockets, but not without a word.
            Err(_) if word.is_some() => break,
            Err(error) => return Err(error),
        };
        match line.parse() {
            Ok(id) => *pid = Some(id),
            Err(_) => word = Some(line.trim().to_owned()),
        }
    }
    Ok(word.unwrap_or_default())
}

/// How a process ended that is not going to serve; it is made to when it does not by itself.
async fn ended(starter: &mut Child, pid: Option<u32>) -> UpgradeError {
    let until = crate::clock::now().after(EXIT_TIMEOUT);
    while crate::clock::now() < until {
        match starter.try_wait() {
            Ok(Some(status)) => return UpgradeError::Ended(status),
            Ok(None) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(error) => return UpgradeError::Start(error),
        }
    }
    end(starter, pid);
    match starter.wait() {
        Ok(status) => UpgradeError::Ended(status),
        Err(error) => UpgradeError::Start(error),
    }
}

/// Ends the process in between, and with it the new one where its id is given.
fn end(starter: &mut Child, pid: Option<u32>) {
    // While the one in between lives, the id is nobody else's.
    if let Some(pid) = pid.and_then(|pid| i32::try_from(pid).ok())
        && let Err(error) = kill(Pid::from_raw(pid), Signal::SIGKILL)
    {
        tracing::debug!(%error, "the new process was gone");
    }
    let ended = starter.kill().and_then(|()| starter.wait());
    tracing::debug!(is_ended = ended.is_ok(), "the process in between is not needed any more");
}

fn send(channel: &UnixStream, sockets: &[Socket]) -> io::Result<()> {
    let addresses: Vec<&str> = sockets.iter().map(|(address, _)| address.as_str()).collect();
    let mut text = addresses.join("\n").into_bytes();
    text.push(0);
    if text.len() > MOST_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let descriptors: Vec<RawFd> = sockets.iter().map(|(_, descriptor)| *descriptor).collect();
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let text = [IoSlice::new(&text)];
    sendmsg::<()>(channel.as_raw_fd(), &text, &rights, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

fn receive(channel: &UnixStream) -> io::Result<Vec<Socket>> {
    let mut text = vec![0; MOST_BYTES];
    let mut room = nix::cmsg_space!([RawFd; MOST_SOCKETS]);
    let mut descriptors = Vec::new();
    let count = {
        let mut parts = [IoSliceMut::new(&mut text)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = recvmsg::<()>(channel.as_raw_fd(), &mut parts, Some(&mut room), flags)?;
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(rights) = control {
                descriptors.extend(rights);
            }
        }
        message.bytes
    };
    let text = text.get(..count).unwrap_or_default().strip_suffix(&[0]);
    let text = text.and_then(|text| std::str::from_utf8(text).ok()).ok_or(NOT_SOCKETS)?;
    let addresses: Vec<String> = text.lines().map(str::to_owned).collect();
    if addresses.len() != descriptors.len() {
        return Err(NOT_SOCKETS.into());
    }
    Ok(addresses.into_iter().zip(descriptors).collect())
}

const NOT_SOCKETS: io::ErrorKind = io::ErrorKind::InvalidData;

/// What a new process takes over, and its line to the one before it.
#[derive(Debug)]
pub struct InheritedSockets {
    channel: UnixStream,
    sockets: Vec<Socket>,
}

impl InheritedSockets {
    /// Takes what the process before this one hands over on standard input.
    ///
    /// # Errors
    /// When nobody hands anything over.
    pub fn take() -> io::Result<Self> {
        let channel = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        // Asked before reading: a terminal would wait for somebody to type.
        channel.peer_addr()?;
        let sockets = receive(&channel)?;
        Ok(Self { channel, sockets })
    }

    /// A second way to the other process, for when this one cannot start.
    ///
    /// # Errors
    /// When there are too many open files.
    pub fn line(&self) -> io::Result<Self> {
        Ok(Self { channel: self.channel.try_clone()?, sockets: Vec::new() })
    }

    /// The sockets this configuration listens on; all others are closed, as nobody would accept on
    /// them.
    pub fn claim(&mut self, addresses: &[String]) -> Vec<Socket> {
        let all = std::mem::take(&mut self.sockets);
        let (claimed, others) =
            all.into_iter().partition(|(address, _)| addresses.contains(address));
        for (address, descriptor) in others {
            if let Err(error) = nix::unistd::close(descriptor) {
                tracing::warn!(address, %error, "a socket that is not needed stays open");
            }
        }
        claimed
    }

    /// Tells the other process that this one serves.
    pub fn tell_ready(mut self) {
        self.tell(READY);
    }

    /// Tells it why this one does not.
    pub fn tell_failure(mut self, reason: &str) {
        self.tell(&reason.replace('\n', "; "));
    }

    fn tell(&mut self, line: &str) {
        if let Err(error) = self.channel.write_all(format!("{line}\n").as_bytes()) {
            tracing::warn!(%error, "the process before this one is not there any more");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn sockets_go_over_with_their_addresses() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let spare = TcpListener::bind("127.0.0.1:0").unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let sockets =
            [(address.to_string(), listener.as_raw_fd()), ("spare".to_owned(), spare.as_raw_fd())];
        send(&ours, &sockets).unwrap();
        let sockets = receive(&theirs).unwrap();
        let mut inherited = InheritedSockets { channel: theirs, sockets };
        let claimed = inherited.claim(&[address.to_string()]);
        assert_eq!(claimed.len(), 1);
        assert_ne!(claimed[0].1, listener.as_raw_fd(), "it is a descriptor of its own");
        drop(listener);
        TcpStream::connect(address).expect("the socket still listens");
        inherited.tell_failure("no\nconfiguration");
        let mut line = String::new();
        let mut ours = ours;
        ours.read_to_string(&mut line).unwrap();
        assert_eq!(line, "no; configuration\n");
    }

    #[test]
    fn what_is_not_a_message_of_sockets_is_refused() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(b"127.0.0.1:80\0").unwrap();
        assert!(receive(&theirs).is_err(), "an address without its socket");
        drop(ours);
        assert!(receive(&theirs).is_err(), "nothing at all");
    }

    /// What is made of these writes to the socket, behind which it is closed.
    async fn heard(writes: &[&str]) -> (String, Option<u32>) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        send(&ours, &[]).unwrap();
        for text in writes {
            theirs.write_all(text.as_bytes()).unwrap();
        }
        drop(theirs);
        let mut pid = None;
        (listen(ours, &mut pid).await.unwrap(), pid)
    }

    #[tokio::test]
    async fn the_id_and_the_word_come_in_either_order() {
        for (writes, word, pid) in [
            (&["17\n", "ready\n"], READY, Some(17)),
            (&["ready\n", "17\n"], READY, Some(17)),
            (&["17\n", "no such file\n"], "no such file", Some(17)),
            (&["no such file\n", "17\n"], "no such file", Some(17)),
            (&["/bin/x: no ", "such file\n"], "/bin/x: no such file", None),
        ] {
            assert_eq!(heard(writes).await, (word.to_owned(), pid), "{writes:?}");
        }
    }

    #[tokio::test]
    async fn who_ends_without_a_word_has_said_nothing() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"17\n").unwrap();
        drop(theirs);
        let mut pid = None;
        assert_eq!(listen(ours, &mut pid).await.unwrap(), "");
        assert_eq!(pid, Some(17));
    }
}
