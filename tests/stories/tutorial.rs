//! A new user copies the commands of `docs/tutorials/three-teams.md` into a shell, one after the
//! other, and sees what the page shows.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::markdown::{Block, blocks};
use crate::support::pace::pause_between_readings;
use crate::support::penstock::{binary, remove_own_variables, scratch};
use crate::support::{free_address, skip};

const PAGE: &str = "docs/tutorials/three-teams.md";
/// The addresses on the page, each of which becomes a free one.
const ADDRESSES: [&str; 4] =
    ["127.0.0.1:8001", "127.0.0.1:8002", "127.0.0.1:8080", "127.0.0.1:9090"];
/// The lines without a use here: the binary is built, and on the path.
const BUILD: [&str; 3] = ["cargo ", "export PATH=", "mkdir "];
/// The line between the outputs of two blocks.
const MARK: &str = "-- end of a block --";
/// The time for all commands; they sleep for three seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// A shell, and what it started; dropping it ends all of them.
struct Shell(Child);

impl Drop for Shell {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        let killed = Command::new("kill").args(["-9", "--", &group]).stderr(Stdio::null()).status();
        drop((killed, self.0.wait()));
    }
}

fn has(program: &str) -> bool {
    let version = Command::new(program).arg("--version").stdout(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// The page with addresses that are free here.
fn tutorial() -> Vec<Block> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = std::fs::read_to_string(root.join(PAGE)).unwrap();
    for address in ADDRESSES {
        assert!(text.contains(address), "{address} is on the page");
        text = text.replace(address, &free_address().to_string());
    }
    blocks(&text)
}

/// The commands of all blocks as one script that writes the file of the page, too.
fn script(blocks: &[Block], binaries: &Path) -> String {
    let mut script = format!("PATH=\"{}:$PATH\"\n", binaries.display());
    for block in blocks {
        match block.language.as_str() {
            "yaml" => script += &format!("cat > penstock.yaml <<'END'\n{}END\n", block.text),
            "sh" => {
                let is_built = |line: &&str| BUILD.iter().any(|start| line.starts_with(start));
                let lines = block.text.lines().filter(|line| !is_built(line));
                script.extend(lines.flat_map(|line| [line, "\n"]));
                script += &format!("echo '{MARK}'\n");
            }
            _ => {}
        }
    }
    script + "kill %1 %2 %3\nwait\n"
}

/// Returns whether a text is like the expected one, in which `…` stands for anything.
fn is_like(text: &str, expected: &str) -> bool {
    let mut parts = expected.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut last = None;
    for part in parts {
        let Some(place) = rest.find(part) else { return false };
        (rest, last) = (&rest[place + part.len()..], Some(part));
    }
    rest.is_empty() || last.is_some_and(|last| rest.ends_with(last))
}

#[test]
fn three_teams_share_a_gateway_as_the_tutorial_shows() {
    if !has("bash") || !has("curl") {
        return skip("the tutorial", "it needs bash and curl");
    }
    let home = scratch("three-teams");
    let binaries = home.join("bin");
    std::fs::create_dir_all(&binaries).unwrap();
    std::os::unix::fs::symlink(binary().get_program(), binaries.join("penstock")).unwrap();
    let blocks = tutorial();
    let (output, errors) = (home.join("output"), home.join("errors"));
    let mut command = Command::new("bash");
    remove_own_variables(&mut command);
    command
        .args(["-c", &script(&blocks, &binaries)])
        .current_dir(&home)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(&output).unwrap())
        .stderr(std::fs::File::create(&errors).unwrap());
    let started = Instant::now();
    let mut shell = Shell(command.spawn().unwrap());
    while shell.0.try_wait().unwrap().is_none() && started.elapsed() < PATIENCE {
        pause_between_readings(Duration::from_millis(50));
    }
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let shown = format!("{}\n-- errors --\n{}", read(&output), read(&errors));
    assert!(shell.0.try_wait().unwrap().is_some(), "not within {PATIENCE:?}: {shown}");
    assert_eq!(read(&errors), "", "no command complains: {shown}");
    let output = read(&output);
    let mark = format!("{MARK}\n");
    let mut outputs = output.split(&mark);
    let mut compared = 0;
    for (index, block) in blocks.iter().enumerate().filter(|(_, block)| block.language == "sh") {
        let printed = outputs.next().unwrap_or_else(|| panic!("no output of {}", block.text));
        let Some(expected) = blocks.get(index + 1).filter(|next| next.language == "text") else {
            continue;
        };
        compared += 1;
        assert!(
            is_like(printed, &expected.text),
            "{}printed\n{printed}and not\n{}\n{shown}",
            block.text,
            expected.text
        );
    }
    assert_eq!(compared, 5, "blocks with an output");
    let log = read(&home.join("penstock.log"));
    let is_warning = |line: &&str| line.contains("WARN") || line.contains("ERROR");
    // How many files may be open is a matter of the machine.
    let warnings =
        log.lines().filter(is_warning).filter(|line| !line.contains("limit of open files"));
    let warnings: Vec<&str> = warnings.collect();
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert!(warnings[0].contains("soft limit"), "{warnings:?}");
}

#[test]
fn ellipsis_stands_for_anything() {
    assert!(is_like("a b c", "a…c") && is_like("abc", "abc") && is_like("a c c", "a…c"));
    for (text, expected) in [("a b", "a…c"), ("xabc", "a…c"), ("abcd", "abc"), ("abcx", "a…c")]
    {
        assert!(!is_like(text, expected), "{text} is not {expected}");
    }
}
