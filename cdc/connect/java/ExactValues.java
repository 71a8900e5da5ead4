package headwater.connect.v1;

import io.debezium.connector.postgresql.PostgresConnectorConfig;
import io.debezium.connector.postgresql.UnchangedToastedReplicationMessageColumn;
import io.debezium.connector.postgresql.connection.PostgresConnection;
import io.debezium.jdbc.JdbcConfiguration;
import io.debezium.jdbc.JdbcConnection;
import io.debezium.spi.converter.CustomConverter;
import io.debezium.spi.converter.RelationalColumn;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Base64;
import java.util.HexFormat;
import java.util.Properties;
import java.util.function.Function;
import org.apache.kafka.connect.data.SchemaBuilder;

/**
 * Sends every value as Postgres itself prints it.
 *
 * <p>The log has values as text, but Debezium parses many of them before a converter sees any: an
 * infinite interval has become a zero by then, a polygon its rounded coordinates, and what a parser
 * does not expect ends the task. Which parser is asked hangs on a type's name, and Debezium learns
 * the names over connections that this class makes: here, every type is called text. A type's
 * number stays what it is, and with it the form in which values are sent.
 *
 * <p>The package's name has the version of these forms: whoever asks for a form asks for its class.
 */
public final class ExactValues
        implements CustomConverter<SchemaBuilder, RelationalColumn>,
                JdbcConnection.ConnectionFactory {

    /** A large value that an update left as it was. No text of Postgres holds a U+0000. */
    private static final String UNCHANGED = "\0unchanged";

    /** What decides how values print; each replication and each ordinary connection has it. */
    private static final String SESSION =
            "SELECT set_config('TimeZone', 'UTC', false), set_config('DateStyle', 'ISO', false),"
                    + " set_config('IntervalStyle', 'iso_8601', false),"
                    + " set_config('extra_float_digits', '1', false),"
                    + " set_config('bytea_output', 'hex', false),"
                    + " set_config('lc_monetary', 'C', false)";

    private static final JdbcConnection.ConnectionFactory CONNECTIONS =
            JdbcConnection.patternBasedFactory(
                    "jdbc:postgresql://${hostname}:${port}/${dbname}",
                    "org.postgresql.Driver",
                    PostgresConnection.class.getClassLoader(),
                    JdbcConfiguration.PORT.withDefault(
                            PostgresConnectorConfig.PORT.defaultValueAsString()));

    // Columns of DatabaseMetaData.getColumns
    private static final int TYPE_NAME = 6;
    private static final int NULLABLE = 11;
    private static final int DEFAULT = 13;

    private String tableOfBytes;

    @Override
    public void configure(Properties properties) {
        tableOfBytes = properties.getProperty("bytes.of");
    }

    @Override
    public void converterFor(
            RelationalColumn column, ConverterRegistration<SchemaBuilder> registration) {
        switch (column.nativeType()) { // numbers of types are the same in every Postgres
            case 16 -> // bool
                    register(registration, SchemaBuilder.bool(), "t"::equals);
            case 20, 21, 23, 26 -> // int8, int2, int4, oid
                    register(registration, SchemaBuilder.int64(), Long::valueOf);
            case 17 -> { // bytea
                if (column.dataCollection().equals(tableOfBytes)) {
                    register(registration, SchemaBuilder.bytes(), ExactValues::bytes);
                } else {
                    register(registration, SchemaBuilder.string(), ExactValues::base64);
                }
            }
            default -> register(registration, SchemaBuilder.string(), text -> text);
        }
    }

    private static void register(
            ConverterRegistration<SchemaBuilder> registration,
            SchemaBuilder schema,
            Function<String, Object> form) {
        // Optional, so that what the log does not have is null and not made up.
        registration.register(
                schema.optional(),
                value -> {
                    if (value instanceof String text) {
                        return form.apply(text);
                    }
                    if (value == null) {
                        return null;
                    }
                    if (UnchangedToastedReplicationMessageColumn.isUnchangedToastedValue(value)) {
                        return UNCHANGED;
                    }
                    // Of what a converter throws, Debezium tells the cause alone.
                    throw new IllegalStateException(
                            new ClassCastException(
                                    ExactValues.class.getName() + " got a "
                                            + value.getClass().getName() + " instead of text:"
                                            + " this version of Debezium is not supported"));
                });
    }

    private static byte[] bytes(String text) {
        return HexFormat.of().parseHex(text, 2, text.length()); // after \x
    }

    private static String base64(String text) {
        return Base64.getEncoder().encodeToString(bytes(text));
    }

    @Override
    public Connection connect(JdbcConfiguration config) throws SQLException {
        Connection connection = CONNECTIONS.connect(config);
        try (Statement statement = connection.createStatement()) {
            statement.execute(SESSION);
        } catch (SQLException error) {
            connection.close();
            throw error;
        }
        return wrapped(Connection.class, connection, null);
    }

    /**
     * Stands before something of JDBC and changes what is said of types.
     *
     * @param query the SQL of a prepared statement; null for anything else
     */
    private static <T> T wrapped(Class<T> type, T target, String query) {
        Object proxy =
                Proxy.newProxyInstance(
                        ExactValues.class.getClassLoader(),
                        new Class<?>[] {type},
                        (self, method, arguments) -> {
                            Object answer = invoke(method, target, arguments);
                            boolean hasQuery = arguments != null && arguments[0] instanceof String;
                            String sql = hasQuery ? (String) arguments[0] : query;
                            return rewritten(method.getName(), answer, sql);
                        });
        return type.cast(proxy);
    }

    private static Object rewritten(String method, Object answer, String query) {
        if (answer instanceof DatabaseMetaData metadata) {
            return wrapped(DatabaseMetaData.class, metadata, null);
        }
        if (answer instanceof PreparedStatement statement) {
            return wrapped(PreparedStatement.class, statement, query);
        }
        if (answer instanceof Statement statement) {
            return wrapped(Statement.class, statement, null);
        }
        if (answer instanceof ResultSet rows) {
            if (method.equals("getColumns")) {
                return changed(rows, ExactValues::column);
            }
            if (query != null && query.contains("t.typbasetype AS parentoid")) {
                return changed(rows, ExactValues::type);
            }
        }
        return answer;
    }

    private interface Change {
        Object apply(ResultSet rows, Object column, Object value) throws SQLException;
    }

    private static ResultSet changed(ResultSet rows, Change change) {
        return (ResultSet)
                Proxy.newProxyInstance(
                        ExactValues.class.getClassLoader(),
                        new Class<?>[] {ResultSet.class},
                        (self, method, arguments) -> {
                            Object value = invoke(method, rows, arguments);
                            boolean reads = arguments != null && method.getName().startsWith("get");
                            return reads ? change.apply(rows, arguments[0], value) : value;
                        });
    }

    /** A column's description: defaults are not parsed, and nothing is made up for a NULL. */
    private static Object column(ResultSet rows, Object place, Object value) {
        if (!(place instanceof Integer number)) {
            return value;
        }
        return switch (number) {
            case TYPE_NAME -> "text";
            case NULLABLE -> DatabaseMetaData.columnNullable;
            case DEFAULT -> null;
            default -> value;
        };
    }

    /** A type's description: not an enum, and of a schema that tells it from all others. */
    private static Object type(ResultSet rows, Object place, Object value) throws SQLException {
        if ("name".equals(place)) {
            return "text";
        }
        if ("schema_name".equals(place)) {
            return "type" + rows.getLong("oid");
        }
        return "category".equals(place) && "E".equals(value) ? "U" : value;
    }

    private static Object invoke(Method method, Object target, Object[] arguments)
            throws Throwable {
        try {
            return method.invoke(target, arguments);
        } catch (InvocationTargetException error) {
            throw error.getCause();
        }
    }
}
