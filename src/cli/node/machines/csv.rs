//! Lists of machines as CSV. The first line names the columns: `mac` and any of the others.

use meshd_config::suggest;
use meshd_model::fleet::{MACHINE_COLUMNS, MAX_MACHINE_ROWS, MachineRow, RowFault};

/// Maximum length of a value in a fault, in characters.
const MAX_SHOWN: usize = 80;

/// Parses a CSV file: RFC 4180, in UTF-8, with or without a byte order mark. Returns the rows and
/// the faults of the format.
pub(super) fn parse(bytes: &[u8]) -> (Vec<MachineRow>, Vec<RowFault>) {
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .trim(csv::Trim::All)
        .from_reader(bytes);
    let mut rows = Vec::new();
    let mut faults = Vec::new();
    let mut columns: Option<Vec<String>> = None;
    let mut record = csv::ByteRecord::new();
    let mut line = 1;
    let mut counted = 0;
    loop {
        match reader.read_byte_record(&mut record) {
            Ok(false) => break,
            Err(error) => {
                faults.push(RowFault::new(line, "", error.to_string(), "write the file as CSV"));
                break;
            }
            Ok(true) => {}
        }
        // The reader counts a line end after the record, and empty lines, to the next record.
        let begin = record.position().map_or(0, csv::Position::byte);
        let begin = usize::try_from(begin).unwrap_or(usize::MAX).clamp(counted, bytes.len());
        let ends = bytes[begin..].iter().take_while(|byte| b"\r\n".contains(byte)).count();
        line += bytes[counted..begin + ends].iter().filter(|byte| **byte == b'\n').count();
        counted = begin + ends;
        let Ok(values) = record.iter().map(std::str::from_utf8).collect::<Result<Vec<_>, _>>()
        else {
            faults.push(RowFault::new(line, "", "is not UTF-8", "save the file as UTF-8"));
            continue;
        };
        let Some(columns) = &columns else {
            match header(line, &values) {
                Ok(names) => columns = Some(names),
                Err(found) => return (Vec::new(), found),
            }
            continue;
        };
        if values.iter().all(|value| value.is_empty()) {
            continue;
        }
        if rows.len() > MAX_MACHINE_ROWS {
            // The check of all rows reports that they are too many.
            break;
        }
        match row(line, columns, &values) {
            Ok(row) => rows.push(row),
            Err(fault) => faults.push(fault),
        }
    }
    if columns.is_none() {
        faults.push(RowFault::new(1, "", "the file is empty", columns_hint()));
    }
    (rows, faults)
}

fn columns_hint() -> String {
    let [required, others @ ..] = MACHINE_COLUMNS;
    format!("the first line names the columns: {required} and any of {}", others.join(", "))
}

/// Reads the names of the columns.
fn header(line: usize, values: &[&str]) -> Result<Vec<String>, Vec<RowFault>> {
    let names: Vec<String> = values.iter().map(|name| name.to_lowercase()).collect();
    if let [only] = names.as_slice()
        && only.contains([';', '\t'])
    {
        let hint = "separate the columns by commas";
        return Err(vec![RowFault::new(line, "", "the columns have another separator", hint)]);
    }
    let mut faults = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let shown: String = name.chars().take(MAX_SHOWN).collect();
        if !MACHINE_COLUMNS.contains(&name.as_str()) {
            let hint = format!("{}; {}", suggest(&shown, MACHINE_COLUMNS), columns_hint());
            faults.push(RowFault::new(line, "", format!("there is no column `{shown}`"), hint));
        } else if names[..index].contains(name) {
            let message = format!("the column `{shown}` occurs twice");
            faults.push(RowFault::new(line, "", message, "remove one of the two"));
        }
    }
    if !names.iter().any(|name| name == "mac") {
        faults.push(RowFault::new(line, "", "the column `mac` is missing", columns_hint()));
    }
    if faults.is_empty() { Ok(names) } else { Err(faults) }
}

/// Reads a row. Missing values at its end are empty.
fn row(line: usize, columns: &[String], values: &[&str]) -> Result<MachineRow, RowFault> {
    let surplus = values.iter().skip(columns.len()).any(|value| !value.is_empty());
    if surplus {
        let message = format!("has {} values for {} columns", values.len(), columns.len());
        let hint = "quote a value that contains a comma; labels are separated by blanks";
        return Err(RowFault::new(line, "", message, hint));
    }
    let mut row = MachineRow { line, ..MachineRow::default() };
    for (column, value) in columns.iter().zip(values) {
        if let Some(field) = row.value_mut(column) {
            (*value).clone_into(field);
        }
    }
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn faults(text: &[u8]) -> Vec<String> {
        let (_, faults) = parse(text);
        faults.iter().map(|fault| format!("{}: {}", fault.line, fault.message)).collect()
    }

    #[test]
    fn csv_of_spreadsheets_is_read() {
        let text = "\u{feff}MAC, name ,address,profile,labels,serial\r\n\
                    52:54:00:00:00:01,gpu001,10.77.0.21,compute,\"rack=a feed=1\",SN1\r\n\
                    \r\n\
                    52:54:00:00:00:02,\"gpu002\",,,\r\n";
        let (rows, faults) = parse(text.as_bytes());
        assert_eq!(faults, []);
        let [one, two] = rows.as_slice() else { panic!("{rows:?}") };
        assert_eq!(
            (one.line, one.labels.as_str(), one.serial.as_str()),
            (2, "rack=a feed=1", "SN1")
        );
        assert_eq!((two.line, two.name.as_str(), two.address.as_str()), (4, "gpu002", ""));
    }

    #[test]
    fn malformed_csv_is_refused_with_its_lines() {
        assert_eq!(faults(b""), ["1: the file is empty"]);
        assert_eq!(faults(b"mac;name\n"), ["1: the columns have another separator"]);
        let expected = ["1: there is no column `host`", "1: the column `mac` is missing"];
        assert_eq!(faults(b"host,name\nx,y\n"), expected);
        assert_eq!(faults(b"mac,mac\n"), ["1: the column `mac` occurs twice"]);
        assert_eq!(
            faults(b"mac,name\na,b,c\nd,e\nf,g,h\n"),
            ["2: has 3 values for 2 columns", "4: has 3 values for 2 columns"]
        );
        assert_eq!(faults(b"mac,name\na,\xff\n"), ["2: is not UTF-8"]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_rows_or_faults(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let (rows, faults) = parse(&[b"mac,name\n", bytes.as_slice()].concat());
            prop_assert!(rows.len() + faults.len() <= bytes.len() + 1);
        }
    }
}
