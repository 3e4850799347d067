//! An operator puts a new version into the place of the running one: the new process takes over the
//! listening sockets, and no connection is refused and no stream cut. One that cannot start changes
//! nothing.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use penstock::mock::{EngineModel, EngineSpec, Pace};

use crate::support::client::{self, Response, streaming_chat};
use crate::support::command::run_with;
use crate::support::engines::{backend, engine, start};
use crate::support::fleet::{CHAT, begin};
use crate::support::load::Load;
use crate::support::penstock::{Penstock, Successor, scratch};
use crate::support::{block_on, eventually};

crate::trials![
    a_new_process_takes_over_under_load,
    unix_socket_survives_upgrade,
    a_process_that_cannot_start_leaves_the_old_one_serving,
    there_is_nothing_to_take_over_by_hand,
];

/// Long enough for two processes to start, drain and end.
const PATIENCE: Duration = Duration::from_secs(20);

fn upgrade(penstock: &Penstock) -> Response {
    client::request(penstock.admin, "POST", "/upgrade", &[], b"")
}

fn a_new_process_takes_over_under_load() {
    let fast = engine("fast", &["m"]);
    let pace =
        Pace { first_token: Duration::ZERO, per_token: Duration::from_millis(60), tokens: 50 };
    let spec = EngineSpec { pace, ..EngineSpec::new("slow", [EngineModel::new("stream")]) };
    let slow = start(spec);
    let yaml = format!("backends:\n{}{}", backend(&fast, ""), backend(&slow, ""));
    let mut penstock = Penstock::start(&yaml);
    let mut stream = begin(penstock.data, CHAT, &streaming_chat("stream", "hello"));
    block_on(slow.wait_for(|counters| counters.events >= 2)).unwrap();
    let mut seen = None;
    let (sent, failed) = Load::during(&penstock, |load| {
        load.wait_for(50);
        let response = upgrade(&penstock);
        assert_eq!(response.status, 200, "{}", response.text());
        // The old process lives until its stream is over, and the load goes on beyond that.
        let successor = Successor::of(&response);
        // systemd waits at a stop for a main process only if it is nobody else's child.
        assert_ne!(successor.parent(), penstock.pid(), "the old one lives, and is not its parent");
        seen = Some((successor, stream.read_response().unwrap()));
        load.wait_for(50);
    });
    let (successor, response) = seen.unwrap();
    assert_eq!(failed, 0, "of {sent} requests during a hand-over");
    assert!(sent > 100, "{sent}");
    assert!(
        response.is_whole && response.text().ends_with("data: [DONE]\n\n"),
        "{}",
        response.text()
    );
    assert_eq!((slow.counters().answered, slow.counters().cancelled), (1, 0));
    assert_eq!(penstock.wait_end(PATIENCE).code(), Some(0), "the old one ends when it is done");
    assert!(successor.is_alive(), "the new one serves");
    assert_eq!(penstock.chat("m").status, 200);
    assert_eq!(penstock.admin("/health/ready").status, 200);

    // The new one can do the same.
    let response = upgrade(&penstock);
    assert_eq!(response.status, 200, "{}", response.text());
    let third = Successor::of(&response);
    eventually("the second one ends", PATIENCE, || !successor.is_alive());
    assert!(third.is_alive());
    assert_eq!(penstock.chat("m").status, 200);
    third.signal("TERM");
    let is_refused = || TcpStream::connect(penstock.data).is_err();
    eventually("the last one takes the sockets along", PATIENCE, is_refused);
}

/// A request to a Unix socket; its status line, or why there is none.
fn ask_over(path: &Path) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    Ok(response.lines().next().unwrap_or_default().to_owned())
}

fn unix_socket_survives_upgrade() {
    let one = engine("one", &["m"]);
    let path = scratch("api.sock");
    let listener = format!("{{ address: \"unix:{}\" }}", path.display());
    let yaml = format!("backends:\n{}", backend(&one, "models: [m]"));
    let mut penstock = Penstock::start_listening(&[listener], "", &yaml);
    eventually("the socket is there", PATIENCE, || ask_over(&path).is_ok());
    let is_over = AtomicBool::new(false);
    let (successor, asked) = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut asked = 0;
                    while !is_over.load(Ordering::Acquire) {
                        let response = ask_over(&path);
                        assert_eq!(response.unwrap(), "HTTP/1.1 200 OK", "request {asked}");
                        asked += 1;
                    }
                    asked
                })
            })
            .collect();
        let successor = Successor::of(&upgrade(&penstock));
        let ended = penstock.wait_end(PATIENCE);
        is_over.store(true, Ordering::Release);
        assert_eq!(ended.code(), Some(0));
        let asked = clients.into_iter().map(|client| client.join().unwrap()).sum::<usize>();
        (successor, asked)
    });
    println!("{asked} requests over a Unix socket during a hand-over");
    assert!(asked > 10 && successor.is_alive());
    assert_eq!(ask_over(&path).unwrap(), "HTTP/1.1 200 OK", "the old one did not take it along");
    assert_eq!(penstock.chat("m").status, 200);
}

fn a_process_that_cannot_start_leaves_the_old_one_serving() {
    let one = engine("one", &["m"]);
    let yaml = format!("backends:\n{}", backend(&one, "models: [m]"));
    let penstock = Penstock::start(&yaml);
    penstock.rewrite(&format!("{yaml}routing: {{ strateggy: random }}\n"));
    let response = upgrade(&penstock);
    assert_eq!((response.status, response.error_code()), (500, "upgrade_failed".to_owned()));
    let told = response.text();
    assert!(told.contains("did you mean 'strategy'?") && told.contains(".yaml:"), "{told}");
    assert!(penstock.log().contains("this one goes on"), "{}", penstock.log());
    for _ in 0..20 {
        assert_eq!(penstock.chat("m").status, 200);
    }
    assert_eq!(penstock.admin("/health/ready").status, 200);
    penstock.rewrite(&yaml);
    let response = upgrade(&penstock);
    assert_eq!(response.status, 200, "{}", response.text());
    let _successor = Successor::of(&response);
    assert_eq!(penstock.chat("m").status, 200);
}

fn there_is_nothing_to_take_over_by_hand() {
    let ran = run_with(["serve", "--take-over"], b"", &[]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("POST /upgrade"), "{}", ran.stderr);
}
