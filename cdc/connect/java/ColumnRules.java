package headwater.connect.v1;

import io.debezium.connector.postgresql.UnchangedToastedReplicationMessageColumn;
import io.debezium.spi.converter.CustomConverter;
import io.debezium.spi.converter.RelationalColumn;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import java.util.Properties;
import java.util.function.UnaryOperator;
import org.apache.kafka.connect.data.SchemaBuilder;

/**
 * Keeps what is in some columns to itself: sends a hash of each value, or always the same mask.
 *
 * <p>Debezium's own masks pass every value that is no character string in clear, take the mark of
 * an unchanged value for a value, and have their salt in a property's name, which nothing hides.
 *
 * <p>Properties: {@code 0.of} a table, {@code 0.column} a column of it, {@code 0.form} either
 * {@code hash} or {@code mask:} and a number of characters; then {@code 1.of} and so on. {@code
 * salt.secret} is what every value is hashed with.
 */
public final class ColumnRules implements CustomConverter<SchemaBuilder, RelationalColumn> {

    /** A large value that an update left as it was; ExactValues sends the same. */
    private static final String UNCHANGED = "\0unchanged";

    private final Map<String, UnaryOperator<String>> forms = new HashMap<>();

    @Override
    public void configure(Properties properties) {
        String salt = properties.getProperty("salt.secret", "");
        for (int number = 0; properties.containsKey(number + ".of"); number++) {
            String table = properties.getProperty(number + ".of");
            String column = properties.getProperty(number + ".column");
            forms.put(place(table, column), form(properties.getProperty(number + ".form"), salt));
        }
    }

    @Override
    public void converterFor(
            RelationalColumn column, ConverterRegistration<SchemaBuilder> registration) {
        UnaryOperator<String> form = forms.get(place(column.dataCollection(), column.name()));
        if (form == null) {
            return;
        }
        registration.register(
                SchemaBuilder.string().optional(),
                value -> {
                    if (value == null) {
                        return null;
                    }
                    if (value instanceof String text) {
                        return form.apply(text);
                    }
                    if (UnchangedToastedReplicationMessageColumn.isUnchangedToastedValue(value)) {
                        return UNCHANGED;
                    }
                    // Of what a converter throws, Debezium tells the cause alone.
                    throw new IllegalStateException(
                            new ClassCastException(
                                    ColumnRules.class.getName() + " got a "
                                            + value.getClass().getName() + " instead of text:"
                                            + " this version of Debezium is not supported"));
                });
    }

    private static String place(String table, String column) {
        return table + "\0" + column;
    }

    private static UnaryOperator<String> form(String words, String salt) {
        if (words.equals("hash")) {
            if (salt.isEmpty()) {
                throw new IllegalArgumentException("headwater.connect.ColumnRules has no salt");
            }
            return text -> hash(salt + text);
        }
        if (words.startsWith("mask:")) {
            String mask = "*".repeat(Integer.parseInt(words.substring("mask:".length())));
            return text -> mask;
        }
        throw new IllegalArgumentException("headwater.connect.ColumnRules knows no form " + words);
    }

    private static String hash(String text) {
        try {
            MessageDigest digest = MessageDigest.getInstance("SHA-256");
            return HexFormat.of().formatHex(digest.digest(text.getBytes(StandardCharsets.UTF_8)));
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error); // every Java has it
        }
    }
}
