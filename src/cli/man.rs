//! `penstock man`: the manual page, generated from the same table as `--help`.

use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::Cli;
use super::error::CliError;
use super::output::Output;

const AFTER_HELP: &str = "\
Example:
  penstock man > /usr/local/share/man/man1/penstock.1";

/// The text after the commands; docs/ has more.
const SECTIONS: [(&str, &[(&str, &str)]); 3] = [
    (
        "SIGNALS",
        &[
            ("SIGHUP", "reload the configuration; an invalid one is logged and changes nothing"),
            (
                "SIGTERM, SIGINT",
                "graceful shutdown: readiness fails, after server.shutdown_delay the listeners close, and \
                 the process exits when the last request is done or after server.drain_timeout; a \
                 second signal exits at once",
            ),
        ],
    ),
    (
        "FILES",
        &[
            (
                "/etc/penstock/penstock.yaml",
                "the configuration, unless --config or PENSTOCK_CONFIG is set",
            ),
            ("/etc/penstock/penstock.env", "environment variables, read by the systemd unit"),
        ],
    ),
    (
        "ENVIRONMENT",
        &[
            ("PENSTOCK_CONFIG", "the configuration file"),
            ("PENSTOCK_<SECTION>_<KEY>", "a setting, such as PENSTOCK_ROUTING_STRATEGY=random"),
            ("RUST_LOG", "the log filter, instead of log.level"),
            ("NOTIFY_SOCKET, WATCHDOG_USEC", "set by systemd: see sd_notify(3)"),
        ],
    ),
];

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct ManArgs {}

pub(super) fn run(_args: &ManArgs, output: &mut Output) -> Result<(), CliError> {
    let page = render(Cli::command()).map_err(CliError::Output)?;
    output.text(String::from_utf8_lossy(&page))
}

fn render(command: Command) -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let man = Man::new(command.clone());
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    commands(&command).to_writer(&mut page)?;
    for (title, rows) in SECTIONS {
        let mut section = Roff::new();
        section.control("SH", [title]);
        for (term, text) in rows {
            section.control("TP", []);
            section.text([bold(*term)]);
            section.text([roman(*text)]);
        }
        section.to_writer(&mut page)?;
    }
    man.render_extra_section(&mut page)?;
    man.render_version_section(&mut page)?;
    Ok(page)
}

/// Every command with its options, on one page.
fn commands(command: &Command) -> Roff {
    let mut page = Roff::new();
    page.control("SH", ["COMMANDS"]);
    for one in leaves(command, "penstock") {
        let (name, command) = one;
        page.control("SS", [name.as_str()]);
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        page.text([roman(about)]);
        for argument in command.get_arguments().filter(|one| one.get_id() != "help") {
            page.control("TP", []);
            page.text([bold(argument.to_string())]);
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            page.text([roman(help)]);
        }
        if let Some(more) = command.get_after_help() {
            page.control("PP", []);
            // Examples keep their line breaks.
            page.control("nf", []);
            page.text([roman(more.to_string())]);
            page.control("fi", []);
        }
    }
    page
}

/// Returns the commands without subcommands, with their full names.
fn leaves<'a>(command: &'a Command, name: &str) -> Vec<(String, &'a Command)> {
    let mut found = Vec::new();
    for one in command.get_subcommands() {
        let name = format!("{name} {}", one.get_name());
        let below = leaves(one, &name);
        if below.is_empty() {
            found.push((name, one));
        } else {
            found.extend(below);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_lists_every_command_signal_and_file() {
        let page = String::from_utf8(render(Cli::command()).unwrap()).unwrap();
        for part in
            [".TH penstock 1", "penstock serve", "penstock config dump", "SIGHUP", "penstock.env"]
        {
            assert!(page.contains(part), "{part} in {page}");
        }
        assert!(!page.contains("penstock help"), "{page}");
    }
}
