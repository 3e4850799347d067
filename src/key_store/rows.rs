//! The rows of a table of the file. A damaged row is left out and the others are read: one of them
//! must not keep all keys from being changed.

use rusqlite::types::ValueRef;
use rusqlite::{Row, Statement};

use super::attributes::InvalidKey;

/// The reason why a row is left out.
#[derive(Debug, thiserror::Error)]
pub enum RowProblem {
    /// A column has a value of another type.
    #[error("{0}")]
    Column(#[from] rusqlite::Error),
    /// The attributes are unknown, or have values that no key can have: they might restrict the key
    /// in a way that this penstock does not know.
    #[error("{0}")]
    Attributes(#[from] InvalidKey),
}

/// A row that was left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DamagedRow {
    pub(super) id: String,
    pub(super) problem: String,
}

#[derive(Debug)]
pub(super) struct TableRows<T> {
    pub(super) whole: Vec<T>,
    pub(super) damaged: Vec<DamagedRow>,
}

/// Reads every row. The first column is its name.
pub(super) fn read_all<T>(
    select: &mut Statement<'_>,
    read: impl Fn(&Row<'_>) -> Result<T, RowProblem>,
) -> rusqlite::Result<TableRows<T>> {
    let mut rows = select.query([])?;
    let mut found = TableRows { whole: Vec::new(), damaged: Vec::new() };
    while let Some(row) = rows.next()? {
        match read(row) {
            Ok(one) => found.whole.push(one),
            Err(problem) => {
                let problem = problem.to_string();
                found.damaged.push(DamagedRow { id: name_of(row), problem });
            }
        }
    }
    Ok(found)
}

fn name_of(row: &Row<'_>) -> String {
    match row.get_ref(0) {
        Ok(ValueRef::Text(name)) => String::from_utf8_lossy(name).into_owned(),
        Ok(other) => format!("({})", other.data_type()),
        Err(error) => format!("({error})"),
    }
}
