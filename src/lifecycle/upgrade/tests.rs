//! Messages between the old and the new process.

use std::io::Read;
use std::net::{TcpListener, TcpStream};

use super::*;

#[test]
fn sockets_are_passed_with_their_addresses() {
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
    assert_ne!(claimed[0].1, listener.as_raw_fd(), "it is a duplicated descriptor");
    drop(listener);
    TcpStream::connect(address).expect("the socket still listens");
    inherited.report_failure("no\nconfiguration");
    let mut line = String::new();
    let mut ours = ours;
    ours.read_to_string(&mut line).unwrap();
    assert_eq!(line, "no; configuration\n");
}

#[test]
fn messages_without_sockets_are_refused() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.write_all(b"127.0.0.1:80\0").unwrap();
    assert!(receive(&theirs).is_err(), "an address without its socket");
    drop(ours);
    assert!(receive(&theirs).is_err(), "nothing at all");
}

/// Returns the report read from these writes, after which the socket is closed.
async fn read(writes: &[&str]) -> (String, Option<u32>) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    send(&ours, &[]).unwrap();
    for text in writes {
        theirs.write_all(text.as_bytes()).unwrap();
    }
    drop(theirs);
    let mut pid = None;
    (read_report(&mut to_async(ours).unwrap(), &mut pid).await.unwrap(), pid)
}

#[tokio::test]
async fn process_id_and_status_come_in_either_order() {
    for (writes, word, pid) in [
        (&["17\n", "ready\n"], READY, Some(17)),
        (&["ready\n", "17\n"], READY, Some(17)),
        (&["17\n", "no such file\n"], "no such file", Some(17)),
        (&["no such file\n", "17\n"], "no such file", Some(17)),
        (&["/bin/x: no ", "such file\n"], "/bin/x: no such file", None),
    ] {
        assert_eq!(read(writes).await, (word.to_owned(), pid), "{writes:?}");
    }
}

#[tokio::test]
async fn child_exit_without_status_line() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"17\n").unwrap();
    drop(theirs);
    let mut pid = None;
    assert_eq!(read_report(&mut to_async(ours).unwrap(), &mut pid).await.unwrap(), "");
    assert_eq!(pid, Some(17));
}
